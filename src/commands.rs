//! The commands that need no mount: `ls`, `cat`, `export` and `check`, over the same file system as the mount.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use mount_tensors::catalog::{Catalog, Tensor};
use mount_tensors::content::Content;
use mount_tensors::error::{Error, Result, printable, quoted};
use mount_tensors::fs::{Attr, Bytes, Fs, Ino, Scratch};
use mount_tensors::tree::{Set, View};
use serde_json::json;

use crate::cli::{CatArgs, CheckArgs, ExportArgs, LsArgs, open_fs};
use crate::text;

/// Bytes asked for at a time.
const STEP: u32 = 1 << 20;

/// Standard output without a buffer of ours, so that mapped bytes go from the mapping to the kernel.
fn output() -> Result<File> {
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    Ok(File::from(stdout.map_err(|e| Error::io("cannot write to standard output", e))?))
}

/// Whoever reads the output may stop early (`head`): that is no failure.
fn written(result: io::Result<()>) -> Result<u8> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        Err(e) => Err(Error::io("cannot write to standard output", e)),
        Ok(()) => Ok(0),
    }
}

/// The error for a path that is not in the tree; a tensor's name is none, but tells which paths were meant.
fn missing_in(fs: &Fs, path: &OsString) -> Error {
    match find_tensor(fs, path.as_bytes()) {
        Some((set, tensor)) => {
            let paths: Vec<String> = View::ALL.iter().take(2).filter_map(|v| Some(String::from_utf8_lossy(&set.path(*v, tensor)?).into_owned())).collect();
            let error = Error::unsupported(format!("{} is a tensor, expected a path of the tree", quoted(path.as_bytes())));
            if paths.is_empty() { error } else { error.hint(format!("its files are {} and more", paths.join(", "))) }
        }
        None => missing(path),
    }
}

fn missing(path: &OsString) -> Error {
    Error::unsupported(format!("there is no file, folder or tensor {} in it", quoted(path.as_bytes()))).hint("ls SOURCE lists what there is")
}

/// Calls `each` with every part of a file; it gets bytes that only system calls may touch.
fn stream(fs: &Fs, attr: Attr, scratch: &mut Scratch, each: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut offset = 0;
    while offset < attr.size {
        let bytes =
            fs.read(attr.ino, offset, STEP, scratch).map_err(|_| io::Error::other("its bytes cannot be read (the file was cut, rewritten, or is damaged)"))?;
        let slice = match &bytes {
            Bytes::Mapped(view) => view.for_the_kernel(),
            Bytes::Copied(bytes) => bytes,
        };
        if slice.is_empty() {
            break;
        }
        offset += slice.len() as u64;
        each(slice)?;
    }
    Ok(())
}

/// Every entry of a folder with its attributes, sorted by name.
fn entries(fs: &Fs, folder: Ino) -> Vec<(Vec<u8>, Attr)> {
    let mut names = Vec::new();
    let _ = fs.list(folder, 0, &mut |line| {
        names.push((line.entry.name.into_owned(), line.entry.ino));
        true
    });
    names.sort();
    names.into_iter().filter_map(|(name, ino)| Some((name, fs.attr(ino).ok()?))).collect()
}

/// The tensor with this name, in any of the trees.
fn find_tensor<'a>(fs: &'a Fs, name: &[u8]) -> Option<(&'a Set, Tensor<'a>)> {
    fs.tree().sets().iter().find_map(|set| set.catalog().tensors().find(|t| t.name() == name).map(|t| (set, t)))
}

/// `ls`: the tree, or one tensor.
pub(crate) fn ls(args: &LsArgs) -> Result<u8> {
    let fs = open_fs(&args.source)?;
    let mut out = Vec::new();
    let path = args.path.clone().unwrap_or_default();
    match fs.resolve(path.as_bytes()) {
        Ok(ino) => {
            let attr = fs.attr(ino).map_err(|_| missing(&path))?;
            let list = if attr.folder { entries(&fs, ino) } else { vec![(path.as_bytes().to_vec(), attr)] };
            if args.json {
                let rows: Vec<_> = list.iter().map(|(name, attr)| entry_json(name, *attr)).collect();
                out.extend(serde_json::to_vec_pretty(&rows).unwrap_or_default());
                out.push(b'\n');
            } else {
                list.iter().for_each(|(name, attr)| entry_line(&mut out, name, *attr, args.long));
            }
        }
        Err(_) => {
            let (set, tensor) = find_tensor(&fs, path.as_bytes()).ok_or_else(|| missing(&path))?;
            if args.json {
                out = mount_tensors::render::tensor_json(set, tensor);
            } else {
                describe(&mut out, set, tensor);
            }
        }
    }
    written(output()?.write_all(&out))
}

fn entry_json(name: &[u8], attr: Attr) -> serde_json::Value {
    let name = String::from_utf8_lossy(name);
    if attr.folder { json!({"name": name, "type": "folder"}) } else { json!({"name": name, "type": "file", "bytes": attr.size, "links": attr.links}) }
}

fn entry_line(out: &mut Vec<u8>, name: &[u8], attr: Attr, long: bool) {
    if long {
        let mode = if attr.folder { "dr-xr-xr-x" } else { "-r--r--r--" };
        let _ = write!(out, "{mode} {:>3} {:>14} ", attr.links, attr.size);
    }
    out.extend(printable(&String::from_utf8_lossy(name)).into_bytes());
    out.extend_from_slice(if attr.folder { b"/\n" } else { b"\n" });
}

/// A tensor in words: type, shape, bytes a row, and its files.
fn describe(out: &mut Vec<u8>, set: &Set, tensor: Tensor<'_>) {
    let mut line = |key: &str, value: &str| {
        let _ = writeln!(out, "{key:<10} {}", printable(value));
    };
    line("name", &String::from_utf8_lossy(tensor.name()));
    line("dtype", &tensor.dtype().to_string());
    line("shape", &format!("{:?}", tensor.shape()));
    if let Some(stored) = tensor.stored_shape() {
        line("stored as", &format!("{stored:?}"));
    }
    if let Some(layout) = tensor.scheme().and_then(|scheme| scheme.facts.get("layout")) {
        line("layout", layout.as_str().unwrap_or_default());
    }
    if let Some(row) = mount_tensors::render::row_bytes(tensor) {
        line("row bytes", &row.to_string());
    }
    if let Some(bytes) = tensor.bytes() {
        line("bytes", &bytes.to_string());
    }
    if let Some(first) = tensor.shares() {
        line("shares", &String::from_utf8_lossy(first.name()));
    }
    for view in View::ALL {
        if let Some(path) = set.path(view, tensor) {
            line(view.key(), &String::from_utf8_lossy(&path));
        }
    }
}

/// `cat`: one file to standard output.
pub(crate) fn cat(args: &CatArgs) -> Result<u8> {
    let fs = open_fs(&args.source)?;
    let ino = fs.resolve(args.path.as_bytes()).map_err(|_| missing_in(&fs, &args.path))?;
    let attr = fs.attr(ino).map_err(|_| missing(&args.path))?;
    if attr.folder {
        return Err(Error::unsupported(format!("{} is a folder, expected a file", quoted(args.path.as_bytes()))).hint("export copies folders"));
    }
    if args.text {
        return text::print(&fs, attr, output()?);
    }
    let mut out = output()?;
    written(stream(&fs, attr, &mut Scratch::default(), &mut |bytes| out.write_all(bytes)))
}

/// `export`: files and folders to a destination.
pub(crate) fn export(args: &ExportArgs, quiet: bool) -> Result<u8> {
    let fs = open_fs(&args.source)?;
    let Some((destination, paths)) = args.paths.split_last() else { return Ok(2) };
    let destination = Path::new(destination);
    let into_folder = destination.is_dir() || paths.len() > 1;
    let mut jobs: Vec<(Attr, PathBuf)> = Vec::new();
    for path in paths {
        let ino = fs.resolve(path.as_bytes()).map_err(|_| missing_in(&fs, path))?;
        let attr = fs.attr(ino).map_err(|_| missing(path))?;
        let name = path.as_bytes().split(|b| *b == b'/').rfind(|part| !part.is_empty() && *part != b".");
        let target = match name {
            Some(name) if into_folder => destination.join(OsString::from_vec(name.to_vec())),
            _ => destination.to_path_buf(),
        };
        collect(&fs, attr, target, &mut jobs);
    }
    if paths.len() > 1 {
        make_folder(destination)?;
    }
    let total = jobs.iter().filter(|(attr, _)| !attr.folder).map(|(attr, _)| attr.size).sum();
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(total) };
    if let Ok(style) = ProgressStyle::with_template("{wide_msg} {bytes}/{total_bytes} {bytes_per_sec} {eta}") {
        bar.set_style(style);
    }
    let mut scratch = Scratch::default();
    for (attr, target) in &jobs {
        if attr.folder {
            make_folder(target)?;
            continue;
        }
        bar.set_message(printable(&target.to_string_lossy()));
        copy(&fs, *attr, target, &mut scratch, &bar)?;
    }
    bar.finish_and_clear();
    Ok(0)
}

/// Lists a file, or a folder and everything in it, for copying.
fn collect(fs: &Fs, attr: Attr, target: PathBuf, jobs: &mut Vec<(Attr, PathBuf)>) {
    let mut pending = vec![(attr, target)];
    while let Some((attr, target)) = pending.pop() {
        if attr.folder {
            pending.extend(entries(fs, attr.ino).into_iter().map(|(name, attr)| (attr, target.join(OsString::from_vec(name)))));
        }
        jobs.push((attr, target));
    }
}

fn make_folder(path: &Path) -> Result<()> {
    match std::fs::create_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other.map_err(|e| Error::io("cannot create the folder", e).in_file(path)),
    }
}

fn copy(fs: &Fs, attr: Attr, target: &Path, scratch: &mut Scratch, bar: &ProgressBar) -> Result<()> {
    let mut file = File::create(target).map_err(|e| Error::io("cannot create", e).in_file(target))?;
    let done = stream(fs, attr, scratch, &mut |bytes| {
        file.write_all(bytes)?;
        bar.inc(bytes.len() as u64);
        Ok(())
    });
    match done.and_then(|()| file.set_modified(attr.modified)) {
        Ok(()) => Ok(()),
        Err(e) => {
            let _ = std::fs::remove_file(target);
            Err(Error::io("cannot copy", e).in_file(target))
        }
    }
}

/// `check`: reads everything and tells what is wrong.
pub(crate) fn check(args: &CheckArgs) -> Result<u8> {
    let mut out = output()?;
    let mut issues = 0u64;
    for source in &args.sources {
        let fs = match open_fs(source) {
            Ok(fs) => fs,
            Err(e) => {
                issues += 1;
                let _ = writeln!(out, "{e}");
                continue;
            }
        };
        for set in fs.tree().sets() {
            let catalog = set.catalog();
            for issue in catalog.issues() {
                issues += 1;
                let _ = writeln!(out, "{}: {}: {}", printable(&issue.place), printable(&issue.what), printable(&issue.done));
            }
            let mut scratch = Scratch::default();
            for tensor in catalog.tensors() {
                if let Err(e) = check_tensor(catalog, tensor, &mut scratch, &mut out) {
                    issues += 1;
                    let _ = writeln!(out, "tensor {}: {e}", quoted(tensor.name()));
                }
            }
            let (tensors, bytes) = (catalog.len(), catalog.containers().map(|(_, s)| s.len()).sum::<u64>());
            let _ = writeln!(out, "{}: {tensors} tensors, {bytes} bytes read", printable(&source.to_string_lossy()));
        }
    }
    written(writeln!(out, "{issues} issues"))?;
    Ok(u8::from(issues > 0))
}

/// Reads a tensor to its end and counts the finite values that f16 would make infinite.
fn check_tensor(catalog: &Catalog, tensor: Tensor<'_>, scratch: &mut Scratch, out: &mut File) -> io::Result<()> {
    let wide = Content::new(View::RawF32, tensor);
    let decoded = wide.is_some();
    let Some(content) = wide.or_else(|| Content::new(View::Raw, tensor)) else { return Ok(()) };
    let (mut at, mut overflows, mut largest) = (0, 0u64, 0f32);
    while at < content.len() {
        let bytes = content.read_copied(catalog.sources(), at, u64::from(STEP), scratch)?;
        if bytes.is_empty() {
            break;
        }
        at += bytes.len() as u64;
        for value in bytes.chunks_exact(4).filter(|_| decoded).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])) {
            // The smallest value that rounds to infinity in half precision is 65520.
            if value.is_finite() && value.abs() >= 65520.0 {
                overflows += 1;
                largest = largest.max(value.abs());
            }
        }
    }
    if overflows > 0 {
        // A note that nobody reads is no fault of the tensor.
        let _ = writeln!(out, "note: tensor {}: {overflows} finite values become infinite in f16, the largest is {largest:e}", quoted(tensor.name()));
    }
    Ok(())
}
