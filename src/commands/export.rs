//! `export`: files and folders of the tree to a destination.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use mount_tensors::error::{Error, Result, printable, quoted};
use mount_tensors::fs::{Attr, Bytes, Fs, Scratch};

use super::pieces::{self, Begun, Job, PIECE};
use super::{WRITE, entries, missing, missing_in, parts_of, stream};
use crate::cli::{ExportArgs, open_fs};

/// `export`: files and folders to a destination.
pub(crate) fn export(args: &ExportArgs, quiet: bool) -> Result<u8> {
    let fs = open_fs(&args.source)?;
    let Some((destination, paths)) = args.paths.split_last() else { return Ok(2) };
    let destination = Path::new(destination);
    let into_folder = destination.is_dir() || paths.len() > 1;
    let (mut folders, mut files) = (Vec::new(), Vec::new());
    let mut targets = HashSet::new();
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
        collect(&fs, attr, target, &mut folders, &mut files)?;
    }
    if paths.len() > 1 {
        make_folder(destination)?;
    }
    folders.iter().try_for_each(|folder| make_folder(folder))?;
    let total = files.iter().map(|(attr, _)| attr.size).fold(0, u64::saturating_add);
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(total) };
    if let Ok(style) = ProgressStyle::with_template("{wide_msg} {bytes}/{total_bytes} {bytes_per_sec} {eta}") {
        bar.set_style(style);
    }
    pieces::run(&Export { fs: &fs, files: &files, bar: &bar })?;
    bar.finish_and_clear();
    Ok(0)
}

/// Lists a file, or a folder and everything in it, for copying: a folder before what is in it.
fn collect(fs: &Fs, attr: Attr, target: PathBuf, folders: &mut Vec<PathBuf>, files: &mut Vec<(Attr, PathBuf)>) -> Result<()> {
    let mut pending = vec![(attr, target)];
    while let Some((attr, target)) = pending.pop() {
        if attr.folder {
            pending.extend(entries(fs, attr.ino)?.into_iter().rev().map(|(name, attr)| (attr, target.join(OsString::from_vec(name)))));
            folders.push(target);
        } else {
            files.push((attr, target));
        }
    }
    Ok(())
}

fn make_folder(path: &Path) -> Result<()> {
    match std::fs::create_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other.map_err(|e| Error::io("cannot create the folder", e).in_file(path)),
    }
}

struct Export<'a> {
    fs: &'a Fs,
    files: &'a [(Attr, PathBuf)],
    bar: &'a ProgressBar,
}

/// A file that is being written.
struct Target<'a> {
    attr: Attr,
    path: &'a Path,
    file: File,
    /// Whether it is a file on a disk, which can be written in any order: not a pipe, not a device.
    regular: bool,
    /// What was there before stays there when the copy fails; a half-written file of ours does not.
    half_written: Option<Unfinished<'a>>,
}

/// A file of ours, removed when it is dropped before it was finished.
struct Unfinished<'a> {
    path: &'a Path,
    finished: std::sync::atomic::AtomicBool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !*self.finished.get_mut() {
            let _ = std::fs::remove_file(self.path);
        }
    }
}

impl Export<'_> {
    /// Whether a file's elements are mapped as they are; a header is in front of the byte that is looked for.
    fn is_stored(&self, attr: Attr) -> bool {
        matches!(self.fs.read(attr.ino, 4096, 1, &mut Scratch::default()), Ok(Bytes::Mapped(_)))
    }
}

impl<'a> Job for Export<'a> {
    type File = Target<'a>;

    fn count(&self) -> usize {
        self.files.len()
    }

    fn begin(&self, index: usize) -> Result<Begun<Target<'a>>> {
        let Some((attr, path)) = self.files.get(index) else { return Err(Error::unsupported("there is no such file")) };
        self.bar.set_message(printable(&path.to_string_lossy()));
        let (created, file) = match File::options().write(true).create_new(true).open(path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => (false, File::options().write(true).truncate(true).open(path)),
            other => (true, other),
        };
        let file = file.map_err(|e| Error::io("cannot create", e).in_file(path))?;
        let regular = file.metadata().is_ok_and(|meta| meta.is_file());
        // Two threads that copy into one file wait for each other, and one is as fast as cp: only what is worked out is worth sharing.
        let shared = regular && attr.size > PIECE && !self.is_stored(*attr);
        let half_written = created.then(|| Unfinished { path, finished: false.into() });
        Ok(Begun { len: attr.size, divisible: shared, file: Target { attr: *attr, path, file, regular, half_written } })
    }

    fn piece(&self, target: &Target<'a>, range: Range<u64>, scratch: &mut Scratch) -> Result<()> {
        let mut offset = range.start;
        let done = stream(self.fs, target.attr, range, scratch, &mut |bytes| {
            let mut parts = parts_of(bytes);
            match (bytes, target.regular) {
                // What is stored as it is goes from file to file. Where the system has no way for that, and where it fails, it is written, which tells why.
                (Bytes::Mapped(view), true) if view.copy_to(&target.file, offset).is_ok() => {}
                (_, true) => parts.clone().zip((offset..).step_by(WRITE)).try_for_each(|(part, at)| target.file.write_all_at(part, at))?,
                (_, false) => parts.try_for_each(|part| (&target.file).write_all(part))?,
            }
            let len = parts_of(bytes).map(<[u8]>::len).sum::<usize>() as u64;
            offset += len;
            self.bar.inc(len);
            Ok(())
        });
        done.map_err(|e| Error::io("cannot copy", e).in_file(target.path))
    }

    fn end(&self, target: &Target<'a>) -> Result<()> {
        if target.regular {
            target.file.set_modified(target.attr.modified).map_err(|e| Error::io("cannot copy", e).in_file(target.path))?;
        }
        if let Some(file) = &target.half_written {
            file.finished.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        Ok(())
    }
}
