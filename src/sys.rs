//! System calls that std has no safe wrapper for: fork, signals, unmounting, files of huge pages.
#![expect(unsafe_code, reason = "each function wraps one libc call and states why it is sound")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Which side of a fork this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// The process that called it, and the child's id.
    Parent(i32),
    /// The new process.
    Child,
}

/// Splits the process in two. Only to be called before any thread is started.
///
/// # Errors
/// The system has no process to give, or threads are running already.
pub fn fork() -> io::Result<Fork> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads != 1 {
        return Err(io::Error::other("cannot fork once threads are running"));
    }
    // SAFETY: this is the only thread (checked above), so no lock can be held by a thread that the child would lack.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        child => Ok(Fork::Parent(child)),
    }
}

/// Makes the process the leader of a session of its own, without a terminal.
pub fn new_session() {
    // SAFETY: setsid has no memory-safety requirements; it fails only for a process-group leader, which a forked child is not.
    let _ = unsafe { libc::setsid() };
}

/// The exit status of a child that has ended; waits for it.
pub fn wait(child: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` is a live i32 for the length of the call.
    let answer = unsafe { libc::waitpid(child, &raw mut status, 0) };
    (answer == child && libc::WIFEXITED(status)).then(|| libc::WEXITSTATUS(status))
}

/// The user and group that run this process.
pub fn ids() -> (u32, u32) {
    // SAFETY: geteuid cannot fail and touches no memory.
    let uid = unsafe { libc::geteuid() };
    // SAFETY: getegid cannot fail and touches no memory.
    let gid = unsafe { libc::getegid() };
    (uid, gid)
}

/// The signals that end the mount.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks SIGINT, SIGTERM and SIGHUP in this thread and those it starts, so that [`Signals::wait`] takes them.
    pub fn block() -> Self {
        // SAFETY: an all-zero sigset_t is a valid value; sigemptyset initialises it anyway.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a live sigset_t.
        unsafe { libc::sigemptyset(&raw mut set) };
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: `set` is an initialised sigset_t and the signal number is valid.
            unsafe { libc::sigaddset(&raw mut set, signal) };
        }
        // SAFETY: `set` is initialised; the old mask is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        Self(set)
    }

    /// Lets the signals through again in this thread, with their default effect.
    pub fn unblock(&self) {
        // SAFETY: the set was initialised in `block`; the old mask is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const self.0, std::ptr::null_mut()) };
    }

    /// The next of the signals, or `None` when the time is over.
    pub fn wait(&self, limit: Duration) -> Option<i32> {
        let limit = libc::timespec { tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX), tv_nsec: limit.subsec_nanos().into() };
        // SAFETY: set and time are live and initialised; no siginfo is asked for.
        let signal = unsafe { libc::sigtimedwait(&raw const self.0, std::ptr::null_mut(), &raw const limit) };
        (signal > 0).then_some(signal)
    }
}

/// Unmounts a mount point; `lazily` detaches it at once even if it is in use.
///
/// # Errors
/// It is no mount point, is in use, or the user may not (EPERM: fusermount3 may).
pub fn unmount(path: &Path, lazily: bool) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazily { libc::MNT_DETACH } else { 0 };
    // SAFETY: the path is a NUL-terminated string that lives for the length of the call.
    match unsafe { libc::umount2(path.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Asks the file system at a path for its sizes, which the kernel never answers from its cache.
///
/// # Errors
/// There is nothing there, or its server is gone (ENOTCONN).
pub fn ask(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: an all-zero statfs is a valid value of the plain C struct.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated, and `stat` is live for the length of the call.
    match unsafe { libc::statfs(path.as_ptr(), &raw mut stat) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Closes every file that was inherited besides the standard streams, so that nobody waits in vain for a pipe that the server holds open.
pub fn close_inherited_files() {
    // SAFETY: called at the start of the program, before it opens anything of its own, so no descriptor above 2 has an owner here.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, 0u32) };
}

/// Makes the standard streams /dev/null.
pub fn detach_streams() {
    let Ok(null) = File::options().read(true).write(true).open("/dev/null") else { return };
    for stream in 0..3 {
        // SAFETY: both descriptors are open; dup2 replaces the stream atomically, and std refers to streams by number only.
        let _ = unsafe { libc::dup2(null.as_raw_fd(), stream) };
    }
}

/// Gives memory that is free back to the system: what was needed to read a container once is not needed to serve it.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim has no requirements; it takes the allocator's own locks.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Waits until there is something to read (or the end), at most this long.
pub fn readable_within(pipe: &impl std::os::fd::AsFd, limit: Duration) -> bool {
    let mut poll = libc::pollfd { fd: pipe.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let limit = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
    loop {
        // SAFETY: `poll` is one live pollfd, and the count says so.
        let answer = unsafe { libc::poll(&raw mut poll, 1, limit) };
        if answer >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return answer > 0;
        }
    }
}

/// Sends SIGTERM to this process, to wake the thread that waits for it.
pub fn signal_self() {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    // SAFETY: kill touches no memory; a process may always signal itself.
    let _ = unsafe { libc::kill(own, libc::SIGTERM) };
}

/// Asks a child to end; one that has ended already is no error.
pub fn stop(child: i32) {
    // SAFETY: kill touches no memory, and the child has not been waited for, so its id is still its own.
    let _ = unsafe { libc::kill(child, libc::SIGTERM) };
}

/// Lets this process open as many files as the system allows it to: a model may have thousands of shards.
pub fn raise_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a live rlimit for the length of the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: as above; a refusal leaves the old limit.
        let _ = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

/// A folder on a tmpfs of huge pages that is mounted nowhere: no mount table shows it, and it goes with its last file.
///
/// # Errors
/// This user may not mount (EPERM), or the kernel has no huge pages for tmpfs (EINVAL).
pub fn huge_page_folder(limit_bytes: u64) -> io::Result<OwnedFd> {
    // linux/mount.h
    const FSOPEN_CLOEXEC: u32 = 1;
    const FSMOUNT_CLOEXEC: u32 = 1;
    const SET_STRING: u32 = 1;
    const CMD_CREATE: u32 = 6;
    const ATTRIBUTES: u32 = 2 | 4 | 8; // nosuid, nodev, noexec
    let taken = |answer: libc::c_long| {
        let fd = i32::try_from(answer).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the system call has just made this descriptor, and nothing else owns it.
        Ok::<_, io::Error>(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    // SAFETY: the name is a NUL-terminated literal.
    let context = taken(unsafe { libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), FSOPEN_CLOEXEC) })?;
    let limit = CString::new(limit_bytes.to_string())?;
    for (key, value) in [(c"huge", c"always"), (c"size", limit.as_c_str()), (c"mode", c"0700")] {
        // SAFETY: the descriptor is open, and key and value are NUL-terminated strings that live for the length of the call.
        let answer = unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), SET_STRING, key.as_ptr(), value.as_ptr(), 0) };
        if answer != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: the descriptor is open; this command takes neither key nor value.
    if unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), CMD_CREATE, none, none, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open; the call takes no pointer.
    taken(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, ATTRIBUTES) })
}

/// A new file without a name in a folder.
///
/// # Errors
/// The file system has no room, or no such files.
pub fn unnamed_file(folder: &OwnedFd) -> io::Result<File> {
    // SAFETY: the descriptor is open, and the path is a NUL-terminated literal.
    let fd = unsafe { libc::openat(folder.as_raw_fd(), c".".as_ptr(), libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC, 0o600) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and has no other owner.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Gives a part of a file its memory (or disk) now, so that writing it through a mapping cannot fail for want of room.
///
/// # Errors
/// There is no room.
pub fn allocate(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let number = |n: u64| libc::off_t::try_from(n).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    // SAFETY: the descriptor is open; the call takes no pointer.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, number(offset)?, number(len)?) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Maps a file of [`unnamed_file`] for being written to.
///
/// # Errors
/// There is no address space for it.
pub fn map_for_writing(file: &File, len: usize) -> io::Result<memmap2::MmapMut> {
    // SAFETY: the file has no name, so that nobody but this process can open, write or cut it, and this process does neither while it is mapped.
    unsafe { memmap2::MmapOptions::new().len(len).map_mut(file) }
}

/// Bytes in use on the file system of a folder.
///
/// # Errors
/// The descriptor is of no use.
pub fn used_bytes(folder: &OwnedFd) -> io::Result<u64> {
    // SAFETY: an all-zero statfs is a valid value of the plain C struct.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and `stat` is live for the length of the call.
    match unsafe { libc::fstatfs(folder.as_raw_fd(), &raw mut stat) } {
        0 => Ok((stat.f_blocks as u64).saturating_sub(stat.f_bfree as u64).saturating_mul(stat.f_bsize as u64)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has writing past the limit for file sizes (`ulimit -f`) fail, as it does on a full disk, instead of ending the process.
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal installs no handler; no other thread runs yet that could depend on it.
    let _ = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Gives an unnamed file (O_TMPFILE) a name that is still free.
///
/// # Errors
/// The name is taken, or the file cannot be named.
pub fn name_file(file: &File, path: &Path) -> io::Result<()> {
    let own = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: both paths are NUL-terminated strings that live for the length of the call.
    match unsafe { libc::linkat(libc::AT_FDCWD, own.as_ptr(), libc::AT_FDCWD, path.as_ptr(), libc::AT_SYMLINK_FOLLOW) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
