//! Opened files: where all bytes come from.
//!
//! A [`Source`] stays open for the life of the mount and is never opened again by its path, so a file that is replaced keeps serving its old bytes. A file
//! that is cut short gives an error for what is gone and goes on serving the rest; one that is rewritten in place gives errors from then on.
//!
//! Mapped bytes are handed to the kernel only ([`Source::view`]): touching them here would be a SIGBUS when the file is cut short meanwhile. Everything that
//! this program itself looks at is read with pread ([`Source::read_at`]).

mod member;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memmap2::{Mmap, MmapOptions};

use crate::error::{Error, Result};

pub use member::{Compression, Member};

/// The number of a [`Source`] within its catalogue.
pub type SourceId = u32;

/// A run of bytes inside a source. One that exists was inside its source when it was made, and can only shrink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent {
    source: SourceId,
    offset: u64,
    len: u64,
}

impl Extent {
    /// The run of `len` bytes at `offset` in `source`, which is number `id` of its catalogue; `None` if it leaves the source.
    pub fn new(id: SourceId, source: &Source, offset: u64, len: u64) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= source.len()).then_some(Self { source: id, offset, len })
    }

    /// The number of the source.
    pub fn source(self) -> SourceId {
        self.source
    }

    /// Offset from the start of the source, in bytes.
    pub fn offset(self) -> u64 {
        self.offset
    }

    /// Length in bytes.
    pub fn len(self) -> u64 {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// A part of this run; `None` if it leaves it.
    pub fn sub(self, offset: u64, len: u64) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then_some(Self { source: self.source, offset: self.offset.checked_add(offset)?, len })
    }
}

/// Bytes of a mapping, pinned for as long as this guard lives, for the kernel to copy from.
///
/// A local mapping needs no pinning; the guard is the place where blocks of a source that is not a local file would be held.
pub struct View<'a> {
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// The bytes, to be passed to a system call and not looked at: reading them here may raise SIGBUS.
    pub fn for_the_kernel(&self) -> &'a [u8] {
        self.bytes
    }
}

/// What has become of a source since it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Nothing changed.
    Same,
    /// The file was cut: this many bytes are left, and they are served.
    Cut(u64),
    /// The file was rewritten in place: nothing of it is served any more.
    Rewritten,
}

/// One opened file, or something that reads like one.
pub struct Source {
    path: PathBuf,
    len: u64,
    modified: SystemTime,
    body: Body,
}

enum Body {
    File(Box<LocalFile>),
    Member(Box<Member>),
    Memory(Vec<u8>),
}

struct LocalFile {
    file: File,
    map: Option<Mmap>,
    identity: (u64, u64),
    stamp: (i64, i64),
    /// The length and time stamp seen last, once the file has changed; `None` as long as it has not.
    changed: Mutex<Option<Change>>,
    /// Whether `changed` is set, to be asked without the lock.
    touched: AtomicBool,
}

#[derive(Clone, Copy)]
struct Change {
    health: Health,
    stamp: (i64, i64),
}

impl Source {
    /// Opens a local file for reading and maps it where that is possible and sensible.
    ///
    /// # Errors
    /// The file cannot be opened, or is a folder, a pipe or a device.
    pub fn open(path: &Path) -> Result<Arc<Self>> {
        let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
        let file = opened.map_err(|e| Error::io("cannot open", e).hint_for_files().in_file(path))?;
        let meta = file.metadata().map_err(|e| Error::io("cannot stat", e).in_file(path))?;
        if !meta.is_file() {
            let what = if meta.is_dir() { "a folder" } else { "a pipe, socket or device" };
            return Err(Error::unsupported(format!("is {what}, expected a regular file")).in_file(path));
        }
        let map = if is_remote(&file) {
            log::info!("{}: on a network file system, read with pread instead of being mapped", path.display());
            None
        } else {
            map(&file, meta.len()).unwrap_or_else(|e| {
                log::info!("{}: cannot be mapped ({e}), read with pread instead", path.display());
                None
            })
        };
        Ok(Arc::new(Self {
            path: path.to_path_buf(),
            len: meta.len(),
            modified: system_time(meta.mtime(), meta.mtime_nsec()),
            body: Body::File(Box::new(LocalFile {
                file,
                map,
                identity: (meta.dev(), meta.ino()),
                stamp: (meta.mtime(), meta.mtime_nsec()),
                changed: Mutex::new(None),
                touched: AtomicBool::new(false),
            })),
        }))
    }

    /// A source that holds `bytes` in memory, for tests and for parts that a program makes itself.
    pub fn from_bytes(path: impl Into<PathBuf>, bytes: Vec<u8>) -> Arc<Self> {
        let len = bytes.len() as u64;
        Arc::new(Self { path: path.into(), len, modified: UNIX_EPOCH, body: Body::Memory(bytes) })
    }

    /// A compressed member of `parent` as a source of its own; it is decompressed when it is first read, and only as far as it is read.
    pub fn from_member(path: impl Into<PathBuf>, modified: SystemTime, len: u64, member: Member) -> Arc<Self> {
        Arc::new(Self { path: path.into(), len, modified, body: Body::Member(Box::new(member)) })
    }

    /// The path as it was given, or the path within the container.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length in bytes when it was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Length of the file that the bytes are stored in when it was opened: a compressed member's is that of its container.
    pub fn stored_len(&self) -> u64 {
        match &self.body {
            Body::Member(member) => member.parent().stored_len(),
            _ => self.len,
        }
    }

    /// Whether it was empty when it was opened.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Time of last modification when it was opened.
    pub fn modified(&self) -> SystemTime {
        self.modified
    }

    /// Whether this is a compressed member of another source.
    pub fn is_member(&self) -> bool {
        matches!(self.body, Body::Member(_))
    }

    /// Device and inode number of a local file: the same file under two names has one identity.
    pub fn identity(&self) -> Option<(u64, u64)> {
        match &self.body {
            Body::File(local) => Some(local.identity),
            _ => None,
        }
    }

    /// What has become of the file since it was opened: one fstat.
    pub fn health(&self) -> Health {
        match &self.body {
            Body::File(local) => local.health(&self.path, self.len),
            Body::Member(member) => member.parent().health(),
            Body::Memory(_) => Health::Same,
        }
    }

    /// Fills `out` with the bytes at `offset`, by pread.
    ///
    /// # Errors
    /// The bytes are not (or no longer) there, or the file was rewritten.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let gone = || io::Error::new(io::ErrorKind::UnexpectedEof, "the file ends before these bytes");
        match &self.body {
            Body::File(_) if self.health() == Health::Rewritten => Err(io::Error::other(format!("{} was rewritten", self.path.display()))),
            Body::File(local) => local.file.read_exact_at(out, offset),
            Body::Member(member) => member.read_at(offset, out),
            Body::Memory(bytes) => {
                let start = usize::try_from(offset).map_err(|_| gone())?;
                let end = start.checked_add(out.len()).ok_or_else(gone)?;
                out.copy_from_slice(bytes.get(start..end).ok_or_else(gone)?);
                Ok(())
            }
        }
    }

    /// The file itself, if it is a local one.
    pub fn file(&self) -> Option<&File> {
        match &self.body {
            Body::File(local) => Some(&local.file),
            _ => None,
        }
    }

    /// Has the system read a run from disk, unless the end of it is in memory already. Nothing waits for it.
    pub fn prefetch(&self, offset: u64, len: u64) {
        let Body::File(local) = &self.body else { return };
        let Some(last) = offset.checked_add(len).and_then(|end| end.checked_sub(1)) else { return };
        if !is_in_memory(&local.file, last) {
            read_ahead(&local.file, offset, len);
        }
    }

    /// The mapped bytes of a run, for the kernel; `None` where the source is not mapped.
    pub fn view(&self, offset: u64, len: u64) -> Option<View<'_>> {
        let Body::File(local) = &self.body else { return None };
        let map: &[u8] = local.map.as_ref()?;
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        map.get(start..end).map(|bytes| View { bytes })
    }
}

impl LocalFile {
    fn health(&self, path: &Path, len: u64) -> Health {
        let meta = match self.file.metadata() {
            Ok(meta) => meta,
            Err(_) => return Health::Same, // fstat of an open descriptor fails only where reads will tell more
        };
        // Once changed, a file that gets its old time stamp back is still another one.
        if !self.touched.load(Ordering::Relaxed) && meta.len() == len && (meta.mtime(), meta.mtime_nsec()) == self.stamp {
            return Health::Same;
        }
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        // A cut sets the time stamp before the size, and once more after it: what is seen in between looks like a rewrite.
        wait_for_changes_under_way(&self.file);
        let Ok(meta) = self.file.metadata() else { return Health::Same };
        let stamp = (meta.mtime(), meta.mtime_nsec());
        let health = match *changed {
            Some(Change { health: Health::Rewritten, .. }) => return Health::Rewritten,
            Some(before) if before.stamp == stamp && before.health == Health::Cut(meta.len()) => return before.health,
            // Once cut, only a further cut is still the same file: anything that grows or is written to again is new content.
            Some(Change { health: Health::Cut(left), .. }) if meta.len() < left => Health::Cut(meta.len()),
            None if meta.len() < len => Health::Cut(meta.len()),
            _ => Health::Rewritten,
        };
        match health {
            Health::Cut(left) => log::error!("{}: was cut from {len} to {left} bytes while mounted: reads past that fail", path.display()),
            _ => log::error!("{}: was rewritten while mounted (size or time stamp changed): reads of it fail from now on", path.display()),
        }
        *changed = Some(Change { health, stamp });
        self.touched.store(true, Ordering::Relaxed);
        health
    }
}

/// Returns when no change of the file's size is under way: seeking data takes the lock that such changes hold.
#[expect(unsafe_code, reason = "std cannot seek data")]
fn wait_for_changes_under_way(file: &File) {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open for as long as `file` is borrowed; its position is never used.
    let _ = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_DATA) };
}

/// Whether the page that holds a byte can be read without waiting for the disk.
#[expect(unsafe_code, reason = "std cannot read without waiting")]
fn is_in_memory(file: &File, offset: u64) -> bool {
    use std::os::fd::AsRawFd;
    let Ok(offset) = libc::off_t::try_from(offset) else { return false };
    let mut byte = 0u8;
    let part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: the descriptor is open; the one part is the one live byte.
    unsafe { libc::preadv2(file.as_raw_fd(), &raw const part, 1, offset, libc::RWF_NOWAIT) == 1 }
}

#[expect(unsafe_code, reason = "std cannot ask for read-ahead")]
fn read_ahead(file: &File, offset: u64, len: u64) {
    use std::os::fd::AsRawFd;
    if let (Ok(offset), Ok(len)) = (libc::off_t::try_from(offset), libc::off_t::try_from(len)) {
        // SAFETY: the descriptor is open; the call takes no pointer. It is a hint: a refusal changes nothing.
        let _ = unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, len, libc::POSIX_FADV_WILLNEED) };
    }
}

fn system_time(seconds: i64, nanoseconds: i64) -> SystemTime {
    let fraction = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0));
    match u64::try_from(seconds) {
        Ok(after) => UNIX_EPOCH.checked_add(Duration::from_secs(after)),
        Err(_) => UNIX_EPOCH.checked_sub(Duration::from_secs(seconds.unsigned_abs())),
    }
    .and_then(|t| t.checked_add(fraction))
    .unwrap_or(UNIX_EPOCH)
}

/// Maps a whole file; `Ok(None)` for an empty one, which cannot be mapped.
#[expect(unsafe_code, reason = "mapping a file is unsafe in Rust because another process may change it")]
fn map(file: &File, len: u64) -> io::Result<Option<Mmap>> {
    let Ok(len) = usize::try_from(len) else { return Ok(None) };
    if len == 0 {
        return Ok(None);
    }
    let mut options = MmapOptions::new();
    options.len(len);
    // SAFETY: the mapping is read-only, and its bytes are never read by this program: `Source::view` hands them to system calls only, where a
    // concurrent change shows as changed bytes and a missing page as EFAULT, neither of which is a Rust-level access.
    let shared = unsafe { options.map(file) };
    match shared {
        Ok(map) => Ok(Some(map)),
        Err(_) => {
            // SAFETY: as above; a private copy-on-write mapping that is never written to.
            let private = unsafe { options.map_copy_read_only(file) };
            private.map(Some)
        }
    }
}

/// Whether a file lies on a network or user-space file system, where large preads are far faster than page faults.
#[expect(unsafe_code, reason = "fstatfs has no safe wrapper in std")]
fn is_remote(file: &File) -> bool {
    use std::os::fd::AsRawFd;
    // Magic numbers: linux/magic.h and statfs(2).
    const REMOTE: [i64; 10] = [
        0x6969,      // NFS
        0x517B,      // SMB
        0xFF53_4D42, // CIFS
        0xFE53_4D42, // SMB2
        0x6573_5546, // FUSE
        0x0102_1997, // 9P
        0x00C3_6400, // Ceph
        0x5346_414F, // AFS
        0x0BD0_0BD0, // Lustre
        0x4750_4653, // GPFS
    ];
    // SAFETY: an all-zero statfs is a valid value of the plain C struct.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the pointer is to a live statfs.
    let answer = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut stat) };
    answer == 0 && REMOTE.contains(&(stat.f_type as i64 & 0xFFFF_FFFF))
}
