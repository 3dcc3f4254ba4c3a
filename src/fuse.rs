//! The kernel's requests, answered by [`Fs`]; the only file that names fuser's types.
//!
//! Nothing changes while mounted, so names and attributes may be kept for ever, and file contents as [`Opens`] decides at each open. A panic in one request is caught, logged,
//! and fails that request only: the reply that it drops answers EIO.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fuser::{
    BackingId, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner, Notifier, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};

use crate::fs::{Attr, Bytes, Errno, Fs, Ino, LONGEST_NAME, Scratch};
use crate::opens::{Opens, Waiter};

/// How long the kernel may keep names and attributes: as long as it likes (the largest value it takes without overflow).
const FOREVER: Duration = Duration::from_secs(1 << 30);
/// Largest request: 512 KiB measured faster than 1 MiB for direct reads, and it does not matter to cached ones.
const MAX_REQUEST_BYTES: u32 = 512 << 10;
/// Read-ahead requests of all files together that may be under way.
const MAX_BACKGROUND: u16 = 64;

/// Owner and permission bits of everything in the mount.
#[derive(Clone, Copy, Debug)]
pub struct Ownership {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Bits taken away from 0444 and 0555.
    pub umask: u16,
}

/// What the kernel talks to.
pub struct Adapter {
    fs: Arc<Fs>,
    owner: Ownership,
    opened: Arc<Mutex<HashSet<Ino>>>,
    opens: Arc<Opens<PendingOpen>>,
}

/// An open that is still to be answered.
pub struct PendingOpen(ReplyOpen);

impl Waiter for PendingOpen {
    type Backing = BackingId;

    fn back(&self, file: &std::fs::File) -> std::io::Result<BackingId> {
        self.0.open_backing(file)
    }

    fn kept(self, handle: u64, unchanged: bool) {
        let keep = if unchanged { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
        self.0.opened(FileHandle(handle), keep | FopenFlags::FOPEN_NOFLUSH);
    }

    fn direct(self, handle: u64, unchanged: bool) {
        // Otherwise the kernel would take away the pages of those who have it mapped.
        let keep = if unchanged { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
        self.0.opened(FileHandle(handle), keep | FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH);
    }

    fn passed(self, handle: u64, backing: &BackingId) {
        // The kernel refuses to keep a cache of what it reads elsewhere.
        self.0.opened_passthrough(FileHandle(handle), FopenFlags::FOPEN_NOFLUSH, backing);
    }
}

/// The inodes that were opened since the mount, whose cached bytes must go when their source changes.
#[derive(Clone)]
pub struct OpenedInodes {
    inodes: Arc<Mutex<HashSet<Ino>>>,
    opens: Arc<Opens<PendingOpen>>,
}

impl OpenedInodes {
    /// Drops the kernel's cached bytes of every file that is no longer what it was.
    pub fn invalidate_changed(&self, fs: &Fs, notifier: &Notifier) {
        let inodes: Vec<Ino> = self.inodes.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        for ino in inodes {
            if !fs.open(ino).is_ok_and(|opened| opened.unchanged) {
                self.opens.changed(ino);
                // An inode that the kernel has forgotten meanwhile has nothing cached.
                let _ = notifier.inval_inode(INodeNo(ino), 0, 0);
            }
        }
    }
}

/// Starts the thread that puts files into huge pages as they are asked for, until the file system is destroyed.
///
/// # Errors
/// The system has no thread to give.
pub fn start_filling(fs: Arc<Fs>, opens: Arc<Opens<PendingOpen>>) -> std::io::Result<()> {
    std::thread::Builder::new().name("fill".to_string()).spawn(move || fill_files(&fs, &opens)).map(|_| ())
}

fn fill_files(fs: &Fs, opens: &Opens<PendingOpen>) {
    let fill = |ino, offset, out: &mut [u8]| {
        SCRATCH.with_borrow_mut(|scratch| fs.read_into(ino, offset, out, scratch)).map_err(|_| std::io::Error::other("its bytes cannot be read"))
    };
    opens.fill_files(&fill, &|ino| fs.open(ino).is_ok_and(|opened| opened.unchanged));
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl From<Errno> for fuser::Errno {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NotFound => Self::ENOENT,
            Errno::IsFolder => Self::EISDIR,
            Errno::NotFolder => Self::ENOTDIR,
            Errno::NameTooLong => Self::ENAMETOOLONG,
            Errno::Io => Self::EIO,
            Errno::NoAttribute => Self::ENODATA,
            Errno::NotSupported => Self::EOPNOTSUPP,
        }
    }
}

impl Adapter {
    /// An adapter for a file system, and the list of inodes that are opened through it.
    pub fn new(fs: Arc<Fs>, owner: Ownership, opens: Arc<Opens<PendingOpen>>) -> (Self, OpenedInodes) {
        let opened = Arc::<Mutex<HashSet<Ino>>>::default();
        let inodes = OpenedInodes { inodes: Arc::clone(&opened), opens: Arc::clone(&opens) };
        (Self { fs, owner, opened, opens }, inodes)
    }

    fn attr(&self, attr: Attr) -> FileAttr {
        let (kind, mode) = if attr.folder { (FileType::Directory, 0o555) } else { (FileType::RegularFile, 0o444) };
        FileAttr {
            ino: INodeNo(attr.ino),
            size: attr.size,
            blocks: attr.size.div_ceil(512),
            atime: attr.modified,
            mtime: attr.modified,
            ctime: attr.modified,
            crtime: attr.modified,
            kind,
            perm: mode & !self.owner.umask,
            nlink: attr.links,
            uid: self.owner.uid,
            gid: self.owner.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

/// Runs one request; a panic is logged and costs only that request.
fn guard(what: &str, ino: u64, request: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(request)).is_err() {
        log::error!("{what} of inode {ino} failed because of a bug in this program; the request is answered with EIO");
    }
}

/// Panics on purpose where a test asks for it (debug builds only), so that the guard is tested in a real mount.
fn injected_panic(offset: u64) {
    if cfg!(debug_assertions) && std::env::var("MOUNT_TENSORS_TEST_PANIC_AT").is_ok_and(|at| at.parse() == Ok(offset)) {
        #[expect(clippy::panic, reason = "this is the panic that the test injects")]
        {
            panic!("injected by a test");
        }
    }
}

impl fuser::Filesystem for Adapter {
    fn destroy(&mut self) {
        self.opens.end();
    }

    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Each is asked for on its own, since older kernels lack some of them.
        for wanted in [
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_NO_OPENDIR_SUPPORT,
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            InitFlags::FUSE_ASYNC_READ,
        ] {
            let _ = config.add_capabilities(wanted);
        }
        if config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_err() {
            self.opens.cannot_map_direct();
        }
        // A depth of 1 lets the files passed on lie on an ordinary file system, and this one below an overlay.
        if config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_err() || config.set_max_stack_depth(1).is_err() {
            self.opens.cannot_pass();
        }
        // A refusal names the nearest value that is taken.
        if let Err(nearest) = config.set_max_write(MAX_REQUEST_BYTES) {
            let _ = config.set_max_write(nearest);
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        guard("lookup", parent.0, || match self.fs.lookup(parent.0, name.as_bytes()) {
            Ok(attr) => reply.entry(&FOREVER, &self.attr(attr), Generation(0)),
            Err(errno) => reply.error(errno.into()),
        });
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        guard("getattr", ino.0, || match self.fs.attr(ino.0) {
            Ok(attr) => reply.attr(&FOREVER, &self.attr(attr)),
            Err(errno) => reply.error(errno.into()),
        });
    }

    fn open(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        guard("open", ino.0, || match self.fs.open(ino.0) {
            Ok(opened) => {
                self.opened.lock().unwrap_or_else(PoisonError::into_inner).insert(ino.0);
                self.opens.open(ino.0, opened, PendingOpen(reply));
            }
            Err(errno) => reply.error(errno.into()),
        });
    }

    fn release(&self, _request: &Request, ino: INodeNo, handle: FileHandle, _flags: OpenFlags, _owner: Option<LockOwner>, _flush: bool, reply: ReplyEmpty) {
        guard("release", ino.0, || self.opens.release(ino.0, handle.0));
        reply.ok();
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        guard("read", ino.0, || {
            injected_panic(offset);
            if let Some((ahead, len)) = self.opens.read(handle.0, offset, size) {
                self.fs.prefetch(ino.0, ahead, len);
            }
            SCRATCH.with_borrow_mut(|scratch| match self.fs.read(ino.0, offset, size, scratch) {
                Ok(Bytes::Mapped(view)) => reply.data(view.for_the_kernel()),
                Ok(Bytes::Copied(bytes)) => reply.data(bytes),
                Err(errno) => reply.error(errno.into()),
            });
        });
    }

    fn opendir(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // With FUSE_NO_OPENDIR_SUPPORT the kernel stops asking after this.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn readdir(&self, _request: &Request, ino: INodeNo, _handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        guard("readdir", ino.0, || {
            let dots = [(1, "."), (2, "..")];
            for (next, name) in dots.into_iter().filter(|(next, _)| *next > offset) {
                if reply.add(ino, next, FileType::Directory, name) {
                    return reply.ok();
                }
            }
            let listed = self.fs.list(ino.0, offset.saturating_sub(2), &mut |line| {
                let kind = if line.entry.folder { FileType::Directory } else { FileType::RegularFile };
                !reply.add(INodeNo(line.entry.ino), line.next.saturating_add(2), kind, OsStr::from_bytes(&line.entry.name))
            });
            match listed {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno.into()),
            }
        });
    }

    fn readdirplus(&self, _request: &Request, ino: INodeNo, _handle: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        guard("readdirplus", ino.0, || {
            let own = match self.fs.attr(ino.0) {
                Ok(attr) => self.attr(attr),
                Err(errno) => return reply.error(errno.into()),
            };
            let dots = [(1, "."), (2, "..")];
            for (next, name) in dots.into_iter().filter(|(next, _)| *next > offset) {
                if reply.add(ino, next, name, &FOREVER, &own, Generation(0)) {
                    return reply.ok();
                }
            }
            let listed = self.fs.list(ino.0, offset.saturating_sub(2), &mut |line| {
                // A document's size is counted when somebody asks for it, not when its folder is listed: until then the kernel may keep nothing of it.
                let Ok((attr, known)) = self.fs.attr_so_far(line.entry.ino) else { return true };
                let keep = if known { FOREVER } else { Duration::ZERO };
                !reply.add(INodeNo(line.entry.ino), line.next.saturating_add(2), OsStr::from_bytes(&line.entry.name), &keep, &self.attr(attr), Generation(0))
            });
            match listed {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno.into()),
            }
        });
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        guard("statfs", 1, || {
            const BLOCK: u32 = 4096;
            let totals = self.fs.totals();
            reply.statfs(totals.bytes.div_ceil(u64::from(BLOCK)), 0, 0, totals.files, 0, BLOCK, LONGEST_NAME as u32, BLOCK);
        });
    }

    fn getxattr(&self, _request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        guard("getxattr", ino.0, || match self.fs.attribute(ino.0, name.as_bytes()) {
            Ok(value) => attribute(&value, size, reply),
            Err(errno) => reply.error(errno.into()),
        });
    }

    fn listxattr(&self, _request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        guard("listxattr", ino.0, || match self.fs.attributes(ino.0) {
            Ok(names) => attribute(names, size, reply),
            Err(errno) => reply.error(errno.into()),
        });
    }

    fn flush(&self, _request: &Request, _ino: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, _handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsyncdir(&self, _request: &Request, _ino: INodeNo, _handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn access(&self, _request: &Request, _ino: INodeNo, _mask: fuser::AccessFlags, reply: ReplyEmpty) {
        // The kernel checks modes where default_permissions is on and asks no more after this.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn lseek(&self, _request: &Request, _ino: INodeNo, _handle: FileHandle, _offset: i64, _whence: i32, reply: ReplyLseek) {
        // There are no holes; the kernel seeks by itself after this.
        reply.error(fuser::Errno::ENOSYS);
    }
}

fn attribute(value: &[u8], size: u32, reply: ReplyXattr) {
    let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
    match size {
        0 => reply.size(len),
        _ if len > size => reply.error(fuser::Errno::ERANGE),
        _ => reply.data(value),
    }
}
