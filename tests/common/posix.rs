//! System calls that std does not have.
#![expect(unsafe_code, reason = "each function wraps one libc call")]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn checked(answer: isize) -> io::Result<usize> {
    usize::try_from(answer).map_err(|_| io::Error::last_os_error())
}

pub(crate) fn user() -> u32 {
    // SAFETY: geteuid touches no memory.
    unsafe { libc::geteuid() }
}

pub(crate) fn kill(pid: i32, signal: i32) {
    assert!(pid > 1);
    // SAFETY: kill touches no memory.
    unsafe { libc::kill(pid, signal) };
}

/// Unmounts lazily, through the setuid helper where it must be.
pub(crate) fn detach(point: &Path) {
    let path = c(point);
    // SAFETY: the path is NUL-terminated and lives for the length of the call.
    let answer = unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) };
    if answer != 0 {
        let _ = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(point).output();
    }
}

pub(crate) fn statvfs(path: &Path) -> libc::statvfs {
    let path = c(path);
    // SAFETY: all zero is a valid value of this plain C struct.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated, and `stat` is live.
    assert_eq!(unsafe { libc::statvfs(path.as_ptr(), &raw mut stat) }, 0);
    stat
}

pub(crate) fn getxattr(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let (path, name) = (c(path), CString::new(name).unwrap());
    let mut value = vec![0u8; 4096];
    // SAFETY: the strings are NUL-terminated, and the buffer is as long as is said.
    let len = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(checked(len)?);
    Ok(value)
}

pub(crate) fn setxattr(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let (path, name) = (c(path), CString::new(name).unwrap());
    // SAFETY: the strings are NUL-terminated, and the buffer is as long as is said.
    let answer = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    checked(answer as isize).map(|_| ())
}

pub(crate) fn listxattr(path: &Path) -> io::Result<Vec<String>> {
    let path = c(path);
    let mut names = vec![0u8; 4096];
    // SAFETY: the path is NUL-terminated, and the buffer is as long as is said.
    let len = unsafe { libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) };
    names.truncate(checked(len)?);
    Ok(names.split(|b| *b == 0).filter(|n| !n.is_empty()).map(|n| String::from_utf8(n.to_vec()).unwrap()).collect())
}

/// A mapping of a whole file.
pub(crate) struct Mapping {
    at: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    pub(crate) fn new(file: &File, protection: i32, flags: i32) -> io::Result<Self> {
        let len = usize::try_from(file.metadata()?.len()).unwrap();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { at, len }) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable, as long as is said, and lives as long as `self`; the file below does not change.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and nothing borrows it any more.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// One directory entry as getdents64 gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dirent {
    pub(crate) ino: u64,
    /// Where the next one is: what telldir would say.
    pub(crate) next: i64,
    pub(crate) kind: u8,
    pub(crate) name: Vec<u8>,
}

/// One getdents64 call with a buffer of this many bytes.
pub(crate) fn getdents(folder: &File, size: usize) -> io::Result<Vec<Dirent>> {
    let mut buffer = vec![0u64; size.div_ceil(8)];
    // SAFETY: the descriptor is open, and the buffer is at least as long as is said.
    let len = unsafe { libc::syscall(libc::SYS_getdents64, folder.as_raw_fd(), buffer.as_mut_ptr(), size) };
    let len = checked(isize::try_from(len).unwrap())?;
    let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).take(len).collect();
    let mut entries = Vec::new();
    let mut rest = bytes.as_slice();
    while rest.len() > 19 {
        let record = usize::from(u16::from_ne_bytes([rest[16], rest[17]]));
        let name = CStr::from_bytes_until_nul(&rest[19..record]).unwrap().to_bytes().to_vec();
        let word = |at: usize| rest[at..at + 8].try_into().unwrap();
        entries.push(Dirent { ino: u64::from_ne_bytes(word(0)), next: i64::from_ne_bytes(word(8)), kind: rest[18], name });
        rest = &rest[record..];
    }
    Ok(entries)
}

/// What seekdir does (and rewinddir, to 0).
pub(crate) fn seek_folder(folder: &File, to: i64) {
    // SAFETY: lseek touches no memory.
    assert_eq!(unsafe { libc::lseek(folder.as_raw_fd(), to, libc::SEEK_SET) }, to);
}

pub(crate) fn mkfifo(path: &Path) -> io::Result<()> {
    let path = c(path);
    // SAFETY: the path is NUL-terminated and lives for the length of the call.
    let answer = unsafe { libc::mkfifo(path.as_ptr(), 0o600) };
    checked(answer as isize).map(|_| ())
}

/// Tells the kernel that a file is read at random.
pub(crate) fn no_read_ahead(file: &File) {
    // SAFETY: the descriptor is open for as long as `file` is borrowed.
    assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) }, 0);
}

/// Moves bytes of a file into a pipe by splice, which hands over its pages instead of copying them.
pub(crate) fn splice(from: &File, to: &impl AsRawFd, len: usize) -> io::Result<usize> {
    // SAFETY: both descriptors are open for as long as they are borrowed; no offset is passed.
    checked(unsafe { libc::splice(from.as_raw_fd(), std::ptr::null_mut(), to.as_raw_fd(), std::ptr::null_mut(), len, 0) })
}
