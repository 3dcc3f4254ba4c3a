//! `export`: files and folders of the tree to a destination.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use mount_tensors::error::{Error, Result, printable, quoted};
use mount_tensors::fs::{Attr, Fs, Nature, Scratch};
use mount_tensors::sys;

use super::pieces::{self, Begun, Job, PIECE};
use super::{Unreadable, entries, identity, missing, missing_in, own_files, parts_of, stream};
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
        let ino = fs.resolve(path.as_bytes()).map_err(|_| missing_in(&fs, &args.source, path))?;
        let attr = fs.attr(ino).map_err(|_| missing(&args.source, path))?;
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
    // Before anything is written: a file that is copied over its own source would be the end of both.
    let own = own_files(&fs);
    if let Some((_, target)) = files.iter().find(|(_, target)| identity(std::fs::metadata(target)).is_some_and(|file| own.contains(&file))) {
        let error = Error::unsupported("is a file of the source itself, which export does not overwrite").in_file(target);
        return Err(error.hint("export to another folder or name"));
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
    /// A file on a disk, which can be written in any order and takes its name when it is whole; `None` for a pipe or a device.
    unfinished: Option<Unfinished>,
    is_text: bool,
}

/// Bytes that are read and written at a time.
const COPY: usize = 256 << 10;

/// A file of ours that gets its name when it is whole: what is there under that name stays there until then, and for good when the copy fails.
struct Unfinished {
    target: PathBuf,
    /// The name that it has meanwhile, where the file system has no files without one; removed when it is dropped before it was finished.
    name: Option<PathBuf>,
    finished: AtomicBool,
}

impl Unfinished {
    /// A new file for `target`, with the owner and permissions of what is there.
    fn new(target: &Path) -> io::Result<(Self, File)> {
        // Through a link to the file that it leads to.
        let target = match target.symlink_metadata() {
            Ok(_) => std::fs::canonicalize(target)?,
            Err(_) => target.to_path_buf(),
        };
        let there = target.metadata().ok();
        if there.is_some() {
            // What the user may not write to is not replaced either.
            File::options().write(true).open(&target)?;
        }
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // A file without a name leaves nothing behind when this program is killed.
        let unnamed = File::options().write(true).custom_flags(libc::O_TMPFILE).mode(0o666).open(folder);
        let (name, file) = match unnamed {
            Ok(file) => (None, file),
            Err(_) => free_name(&target, |name| File::options().write(true).create_new(true).open(name)).map(|(name, file)| (Some(name), file))?,
        };
        if let Some(there) = there {
            file.set_permissions(there.permissions())?;
            // Only root may give files away; for others it is their own already.
            let _ = std::os::unix::fs::fchown(&file, Some(there.uid()), Some(there.gid()));
        }
        Ok((Self { target, name, finished: AtomicBool::new(false) }, file))
    }

    fn finish(&self, file: &File) -> io::Result<()> {
        match &self.name {
            Some(name) => std::fs::rename(name, &self.target)?,
            None => match sys::name_file(file, &self.target) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    let (name, ()) = free_name(&self.target, |name| sys::name_file(file, name))?;
                    std::fs::rename(&name, &self.target).inspect_err(|_| drop(std::fs::remove_file(&name)))?;
                }
                other => other?,
            },
        }
        self.finished.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(name) = self.name.as_ref().filter(|_| !*self.finished.get_mut()) {
            let _ = std::fs::remove_file(name);
        }
    }
}

/// Calls `make` with names beside `target` until one is free.
fn free_name<T>(target: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(PathBuf, T)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = target.with_file_name(format!(".mount-tensors-{}-{number}.part", std::process::id()));
        match make(&name) {
            // A process of another machine or container may have the same number.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            other => return Ok((name, other?)),
        }
    }
}

impl Export<'_> {
    /// Writes a range of a tensor's file through a buffer that stays in the cache: faster than the kernel's own copying from file to file, which takes tensors
    /// that do not begin at a page's edge apart.
    fn copy(&self, target: &Target<'_>, range: Range<u64>, scratch: &mut Scratch) -> io::Result<()> {
        let mut buffer = vec![0; COPY.min(usize::try_from(range.end - range.start).unwrap_or(COPY))];
        for offset in range.clone().step_by(COPY) {
            let len = usize::try_from(range.end - offset).unwrap_or(COPY).min(COPY);
            let Some(part) = buffer.get_mut(..len) else { break };
            self.fs.read_into(target.attr.ino, offset, part, scratch).map_err(|_| io::Error::other(Unreadable))?;
            target.file.write_all_at(part, offset)?;
            self.bar.inc(len as u64);
        }
        Ok(())
    }

    /// Writes a range of any file in order.
    fn stream(&self, target: &Target<'_>, range: Range<u64>, scratch: &mut Scratch) -> io::Result<()> {
        let mut offset = range.start;
        stream(self.fs, target.attr, range, scratch, &mut |bytes| {
            for part in parts_of(bytes) {
                match target.unfinished {
                    Some(_) => target.file.write_all_at(part, offset)?,
                    None => (&target.file).write_all(part)?,
                }
                offset += part.len() as u64;
                self.bar.inc(part.len() as u64);
            }
            Ok(())
        })
    }

    /// Whether a file is rendered text.
    fn is_text(&self, attr: Attr) -> bool {
        self.fs.open(attr.ino).is_ok_and(|opened| matches!(opened.nature, Nature::Text))
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
        let cannot = |e| Error::io("cannot create", e).in_file(path);
        let (unfinished, file) = match path.metadata() {
            Ok(there) if !there.is_file() => (None, File::options().write(true).open(path).map_err(cannot)?),
            _ => Unfinished::new(path).map(|(unfinished, file)| (Some(unfinished), file)).map_err(cannot)?,
        };
        let is_text = self.is_text(*attr);
        let divisible = unfinished.is_some() && attr.size > PIECE && !is_text;
        Ok(Begun { len: attr.size, divisible, file: Target { attr: *attr, path, file, unfinished, is_text } })
    }

    fn piece(&self, target: &Target<'a>, range: Range<u64>, scratch: &mut Scratch) -> Result<()> {
        let done = match (&target.unfinished, target.is_text) {
            (Some(_), false) => self.copy(target, range, scratch),
            _ => self.stream(target, range, scratch),
        };
        done.map_err(|e| Error::io("cannot copy", e).in_file(target.path))
    }

    fn end(&self, target: &Target<'a>) -> Result<()> {
        let Some(unfinished) = &target.unfinished else { return Ok(()) };
        let done = target.file.set_modified(target.attr.modified).and_then(|()| unfinished.finish(&target.file));
        done.map_err(|e| Error::io("cannot copy", e).in_file(target.path))
    }
}
