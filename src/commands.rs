//! The commands that need no mount: `ls`, `cat`, `export` and `check`, over the same file system as the mount.

mod check;
mod export;
mod pieces;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use mount_tensors::catalog::Tensor;
use mount_tensors::error::{Error, Result, printable, quoted};
use mount_tensors::fs::{Attr, Bytes, Fs, Ino, Scratch};
use mount_tensors::tree::{Set, View};
use serde_json::json;

use crate::cli::{CatArgs, LsArgs, open_fs};
use crate::text;

pub(crate) use check::check;
pub(crate) use export::export;

/// Bytes asked for at a time.
const STEP: u32 = 1 << 20;

/// Bytes written at a time, as cat(1) does: a larger write makes the kernel look for larger runs of free memory, and fill them outside of its caches.
const WRITE: usize = 128 << 10;

/// Standard output without a buffer of ours, so that mapped bytes go from the mapping to the kernel.
fn output() -> Result<File> {
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    Ok(File::from(stdout.map_err(|e| Error::io("cannot write to standard output", e))?))
}

/// Whoever reads the output may stop early (`head`): that is no failure.
fn written(result: io::Result<()>) -> Result<u8> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        Err(e) if e.get_ref().is_some_and(|cause| cause.is::<Unreadable>()) => Err(Error::unsupported(e.to_string())),
        Err(e) => Err(Error::io("cannot write to standard output", e)),
        Ok(()) => Ok(0),
    }
}

/// The error for a path that is not in the tree; a tensor's name is none, but tells which paths were meant.
fn missing_in(fs: &Fs, source: &OsStr, path: &OsString) -> Error {
    match find_tensor(fs, path.as_bytes()) {
        Some((set, tensor)) => {
            let paths: Vec<String> = View::ALL.iter().take(2).filter_map(|v| Some(String::from_utf8_lossy(&set.path(*v, tensor)?).into_owned())).collect();
            let error = Error::unsupported(format!("{} is a tensor, expected a path of the tree", quoted(path.as_bytes())));
            if paths.is_empty() { error } else { error.hint(format!("its files are {} and more", paths.join(", "))) }
        }
        None => missing(source, path),
    }
}

fn missing(source: &OsStr, path: &OsString) -> Error {
    Error::unsupported(format!("there is no file, folder or tensor {} in it", quoted(path.as_bytes())))
        .in_file(Path::new(source))
        .hint("ls SOURCE lists what there is")
}

/// Why bytes of the tree do not come, as opposed to why they cannot be written.
#[derive(Debug)]
struct Unreadable;

impl std::fmt::Display for Unreadable {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("its bytes cannot be read: the file was cut, rewritten or is damaged, or there is no room to decompress it (TMPDIR); -v says which")
    }
}

impl std::error::Error for Unreadable {}

/// The parts in which bytes are written; only system calls may touch them.
fn parts_of<'a>(bytes: &'a Bytes<'_>) -> std::slice::Chunks<'a, u8> {
    match bytes {
        Bytes::Mapped(view) => view.for_the_kernel().chunks(WRITE),
        Bytes::Copied(bytes) => bytes.chunks(WRITE),
    }
}

/// Calls `each` with the bytes of a range of a file, in order.
fn stream(fs: &Fs, attr: Attr, range: Range<u64>, scratch: &mut Scratch, each: &mut dyn FnMut(&Bytes<'_>) -> io::Result<()>) -> io::Result<()> {
    let mut offset = range.start;
    while offset < range.end {
        let step = u32::try_from(range.end - offset).unwrap_or(STEP).min(STEP);
        let bytes = fs.read(attr.ino, offset, step, scratch).map_err(|_| io::Error::other(Unreadable))?;
        let len = parts_of(&bytes).map(<[u8]>::len).sum::<usize>() as u64;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        offset += len;
        each(&bytes)?;
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
            let attr = fs.attr(ino).map_err(|_| missing(&args.source, &path))?;
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
            let (set, tensor) = find_tensor(&fs, path.as_bytes()).ok_or_else(|| missing(&args.source, &path))?;
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

/// The files that a source is made of, by device and inode number.
fn own_files(fs: &Fs) -> HashSet<(u64, u64)> {
    fs.tree().sets().iter().flat_map(|set| set.catalog().sources()).filter_map(|source| source.identity()).collect()
}

/// Which file it is, if it is one.
fn identity(meta: io::Result<Metadata>) -> Option<(u64, u64)> {
    meta.ok().filter(Metadata::is_file).map(|meta| (meta.dev(), meta.ino()))
}

/// `cat`: one file to standard output.
pub(crate) fn cat(args: &CatArgs) -> Result<u8> {
    let fs = open_fs(&args.source)?;
    let ino = fs.resolve(args.path.as_bytes()).map_err(|_| missing_in(&fs, &args.source, &args.path))?;
    let attr = fs.attr(ino).map_err(|_| missing(&args.source, &args.path))?;
    if attr.folder {
        return Err(Error::unsupported(format!("{} is a folder, expected a file", quoted(args.path.as_bytes()))).hint("export copies folders"));
    }
    let out = output()?;
    if identity(out.metadata()).is_some_and(|file| own_files(&fs).contains(&file)) {
        return Err(Error::unsupported("standard output is the source itself"));
    }
    if args.text {
        return text::print(&fs, attr, out);
    }
    let mut out = out;
    written(stream(&fs, attr, 0..attr.size, &mut Scratch::default(), &mut |bytes| parts_of(bytes).try_for_each(|part| out.write_all(part))))
}
