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
use mount_tensors::dtype::Endian;
use mount_tensors::error::{Error, Result, counted, printable, quoted};
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
fn entries(fs: &Fs, folder: Ino) -> Result<Vec<(Vec<u8>, Attr)>> {
    let unreadable = |name: &[u8]| Error::unsupported(format!("{} cannot be rendered (the file was cut, rewritten, or is damaged)", quoted(name)));
    let mut names = Vec::new();
    let listed = fs.list(folder, 0, &mut |line| {
        names.push((line.entry.name.into_owned(), line.entry.ino));
        true
    });
    listed.map_err(|_| unreadable(b"the folder"))?;
    names.sort();
    names.into_iter().map(|(name, ino)| Ok((fs.attr(ino).map_err(|_| unreadable(&name))?, name))).map(|entry| entry.map(|(attr, name)| (name, attr))).collect()
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
            let list = if attr.folder { entries(&fs, ino)? } else { vec![(path.as_bytes().to_vec(), attr)] };
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
    let mut targets = std::collections::HashSet::new();
    for path in paths {
        let ino = fs.resolve(path.as_bytes()).map_err(|_| missing_in(&fs, path))?;
        let attr = fs.attr(ino).map_err(|_| missing(path))?;
        let name = path.as_bytes().split(|b| *b == b'/').rfind(|part| !part.is_empty() && *part != b".");
        let target = match name {
            Some(name) if into_folder => destination.join(OsString::from_vec(name.to_vec())),
            _ => destination.to_path_buf(),
        };
        if !targets.insert(target.clone()) {
            let what = format!("two of the paths would be written to {}", quoted(target.as_os_str().as_bytes()));
            return Err(Error::unsupported(what).hint("export them to folders of their own"));
        }
        collect(&fs, attr, target, &mut jobs)?;
    }
    if paths.len() > 1 {
        make_folder(destination)?;
    }
    let total = jobs.iter().filter(|(attr, _)| !attr.folder).map(|(attr, _)| attr.size).fold(0, u64::saturating_add);
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
fn collect(fs: &Fs, attr: Attr, target: PathBuf, jobs: &mut Vec<(Attr, PathBuf)>) -> Result<()> {
    let mut pending = vec![(attr, target)];
    while let Some((attr, target)) = pending.pop() {
        if attr.folder {
            pending.extend(entries(fs, attr.ino)?.into_iter().map(|(name, attr)| (attr, target.join(OsString::from_vec(name)))));
        }
        jobs.push((attr, target));
    }
    Ok(())
}

fn make_folder(path: &Path) -> Result<()> {
    match std::fs::create_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other.map_err(|e| Error::io("cannot create the folder", e).in_file(path)),
    }
}

fn copy(fs: &Fs, attr: Attr, target: &Path, scratch: &mut Scratch, bar: &ProgressBar) -> Result<()> {
    // What was there before stays there when the copy fails; a half-written file of ours does not.
    let (created, file) = match File::options().write(true).create_new(true).open(target) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => (false, File::options().write(true).truncate(true).open(target)),
        other => (true, other),
    };
    let mut file = file.map_err(|e| Error::io("cannot create", e).in_file(target))?;
    let is_file = file.metadata().is_ok_and(|meta| meta.is_file());
    let done = stream(fs, attr, scratch, &mut |bytes| {
        file.write_all(bytes)?;
        bar.inc(bytes.len() as u64);
        Ok(())
    });
    match done.and_then(|()| if is_file { file.set_modified(attr.modified) } else { Ok(()) }) {
        Ok(()) => Ok(()),
        Err(e) => {
            if created {
                let _ = std::fs::remove_file(target);
            }
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
            let bytes = catalog.containers().map(|(_, s)| s.len()).fold(0, u64::saturating_add);
            let path = catalog.containers().next().map_or_else(|| source.to_string_lossy().into_owned(), |(_, s)| s.path().to_string_lossy().into_owned());
            let _ = writeln!(out, "{}: {}, {}", printable(&path), counted(catalog.len(), "tensor", "tensors"), counted(bytes, "byte", "bytes"));
        }
    }
    written(writeln!(out, "{}", counted(issues, "issue", "issues")))?;
    Ok(u8::from(issues > 0))
}

/// Reads a tensor to its end and counts the finite values that f16 would make infinite.
fn check_tensor(catalog: &Catalog, tensor: Tensor<'_>, scratch: &mut Scratch, out: &mut File) -> io::Result<()> {
    // Doubles are judged as they are: rounding them to single precision first would hide some and make up others.
    let double = tensor.scheme().is_none() && tensor.dtype().to_string() == "f64";
    let wide = Content::new(View::RawF32, tensor).filter(|_| !double);
    let decoded = wide.is_some();
    let Some(content) = wide.or_else(|| Content::new(View::Raw, tensor)) else { return Ok(()) };
    let (mut at, mut overflows, mut largest) = (0, 0u64, 0f64);
    let mut judge = |value: f64| {
        // The smallest value that rounds to infinity in half precision is 65520.
        if value.is_finite() && value.abs() >= 65520.0 {
            overflows += 1;
            largest = largest.max(value.abs());
        }
    };
    while at < content.len() {
        let bytes = content.read_copied(catalog.sources(), at, u64::from(STEP), scratch)?;
        if bytes.is_empty() {
            break;
        }
        at += bytes.len() as u64;
        if double {
            let big = tensor.endian() == Endian::Big;
            bytes.as_chunks().0.iter().for_each(|b| judge(if big { f64::from_be_bytes(*b) } else { f64::from_le_bytes(*b) }));
        } else if decoded {
            bytes.as_chunks().0.iter().for_each(|b| judge(f32::from_le_bytes(*b).into()));
        }
    }
    if overflows > 0 {
        // A note that nobody reads is no fault of the tensor.
        let _ = writeln!(out, "note: tensor {}: {overflows} finite values become infinite in f16, the largest is {largest:e}", quoted(tensor.name()));
    }
    Ok(())
}
