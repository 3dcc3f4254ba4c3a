//! What stat, statfs, xattrs and the mount table say; and that nothing can be changed.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::common::posix::{self, Mapping};
use crate::common::{Mounted, Place, assert_same, errno, fixture, fuse_is_here, has_tool, run, text, walk};

/// A copy of the fixture with a time of its own, since that of a checkout is any.
fn dated(place: &Place) -> (std::path::PathBuf, SystemTime) {
    let source = place.copy("gguf/good/tiny.gguf", "tiny model,rw.gguf");
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
    File::options().write(true).open(&source).unwrap().set_modified(time).unwrap();
    (source, time)
}

#[test]
fn a_mount_in_the_background_answers_as_soon_as_it_is_told_and_looks_right_in_the_mount_table() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    let (source, _) = dated(&place);
    let mounted = Mounted::at(place, &source, &[]);
    assert!(text(mounted.path("info.json")).starts_with('{'));
    let line = mounted.line();
    assert_eq!((line.kind.as_str(), line.source.as_str()), ("fuse.mount-tensors", "tiny_model_rw.gguf"));
    for wanted in ["ro", "nosuid", "nodev"] {
        assert!(line.options.contains(wanted), "{:?}", line.options);
    }
    for unasked in ["rw", "suid", "dev", "allow_other", "default_permissions"] {
        assert!(!line.options.contains(unasked), "{:?}", line.options);
    }
    if has_tool("findmnt") {
        let found = run(std::process::Command::new("findmnt").args(["-n", "-o", "SOURCE", "-t", "fuse.mount-tensors", "--mountpoint"]).arg(&mounted.point));
        assert_eq!(found.good().trim(), "tiny_model_rw.gguf");
    }
    mounted.unmount();
}

/// What must stay the same between two looks at a file.
fn looks(path: &Path) -> (u64, u32, u64, u64, u64, u32, u32, [i64; 6]) {
    let m = fs::symlink_metadata(path).unwrap();
    let times = [m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec(), m.atime(), m.atime_nsec()];
    (m.ino(), m.mode(), m.nlink(), m.size(), m.blocks(), m.uid(), m.gid(), times)
}

#[test]
fn attributes_are_right_and_stay_the_same() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    let (source, time) = dated(&place);
    let mounted = Mounted::at(place, &source, &[]);
    let own = fs::metadata(&source).unwrap();
    let paths = walk(&mounted.point);
    assert!(paths.len() > 150);
    let mut names: HashMap<u64, u64> = HashMap::new();
    let mut first = Vec::new();
    for path in &paths {
        let meta = fs::symlink_metadata(mounted.path(path)).unwrap();
        let shown = path.display();
        let mode = if meta.is_dir() { 0o40_555 } else { 0o100_444 };
        assert_eq!(format!("{:o}", meta.mode()), format!("{mode:o}"), "{shown}");
        assert_eq!((meta.uid(), meta.gid()), (own.uid(), own.gid()), "{shown}");
        assert_eq!(meta.modified().unwrap(), time, "{shown}");
        assert_eq!(meta.accessed().unwrap(), time, "{shown}");
        assert_eq!(meta.blocks(), meta.size().div_ceil(512), "{shown}");
        assert!(meta.blksize() >= 4096, "{shown}");
        if meta.is_dir() {
            let folders = fs::read_dir(mounted.path(path)).unwrap().filter(|e| e.as_ref().unwrap().file_type().unwrap().is_dir()).count();
            assert_eq!(meta.nlink(), 2 + folders as u64, "{shown}");
        } else {
            *names.entry(meta.ino()).or_default() += 1;
            assert_eq!(fs::read(mounted.path(path)).unwrap().len() as u64, meta.size(), "{shown}");
        }
        first.push(looks(&mounted.path(path)));
    }
    for path in paths.iter().filter(|path| mounted.path(path).is_file()) {
        let meta = fs::symlink_metadata(mounted.path(path)).unwrap();
        assert_eq!(meta.nlink(), names[&meta.ino()], "{}", path.display());
    }
    let root = fs::metadata(&mounted.point).unwrap();
    assert_eq!((root.mode(), root.ino(), root.nlink(), root.modified().unwrap()), (0o40_555, 1, 2 + 6, time));
    let ino = |path: &str| fs::metadata(mounted.path(path)).unwrap().ino();
    assert_eq!(ino("raw/output_norm.weight.f32"), ino("as/raw-f32/output_norm.weight.f32"));
    assert_eq!(ino("npy/output_norm.weight.npy"), ino("as/f32/output_norm.weight.npy"));
    // Everything has been read by now: no time has moved, nor anything else, in this mount or in the next.
    let again: Vec<_> = paths.iter().map(|path| looks(&mounted.path(path))).collect();
    assert_eq!(again, first);
    let Mounted { place, point } = mounted;
    place.unmount(&point);
    place.all_over();
    let mounted = Mounted::at(place, &source, &[]);
    let again: Vec<_> = paths.iter().map(|path| looks(&mounted.path(path))).collect();
    assert_eq!(again, first);
}

#[test]
fn statfs_tells_the_size_of_the_source() {
    if !fuse_is_here() {
        return;
    }
    let source = fixture("gguf/good/tiny.gguf");
    let mounted = Mounted::new(&source);
    let stat = posix::statvfs(&mounted.point);
    assert_eq!((stat.f_namemax, stat.f_bsize, stat.f_frsize), (255, 4096, 4096));
    assert_eq!(stat.f_blocks, fs::metadata(&source).unwrap().len().div_ceil(4096));
    assert_eq!((stat.f_bfree, stat.f_bavail, stat.f_ffree), (0, 0, 0));
    let inodes: std::collections::HashSet<u64> = walk(&mounted.point).iter().map(|p| fs::symlink_metadata(mounted.path(p)).unwrap().ino()).collect();
    assert!(stat.f_files >= inodes.len() as u64, "{} inodes are seen, statfs says {}", inodes.len(), stat.f_files);
    mounted.unmount();
}

#[test]
fn every_change_is_refused_as_on_a_read_only_file_system() {
    if !fuse_is_here() {
        return;
    }
    let mounted = Mounted::new(fixture("gguf/good/tiny.gguf"));
    let (file, folder, new) = (mounted.path("info.json"), mounted.path("raw"), mounted.path("new"));
    let read_only = |what: &str, result: std::io::Result<()>| assert_eq!(errno(result), libc::EROFS, "{what}");
    read_only("create", File::create(&new).map(|_| ()));
    read_only("create over a file", File::create(&file).map(|_| ()));
    read_only("open for writing", File::options().write(true).open(&file).map(|_| ()));
    read_only("open for appending", File::options().append(true).open(&file).map(|_| ()));
    read_only("open for truncation", File::options().read(true).custom_flags(libc::O_TRUNC).open(&file).map(|_| ()));
    read_only("temporary file", File::options().write(true).custom_flags(libc::O_TMPFILE).open(&folder).map(|_| ()));
    read_only("mkdir", fs::create_dir(&new));
    read_only("unlink", fs::remove_file(&file));
    read_only("rmdir", fs::remove_dir(&folder));
    read_only("rename", fs::rename(&file, &new));
    read_only("link", fs::hard_link(&file, &new));
    read_only("symlink", std::os::unix::fs::symlink("x", &new));
    read_only("chmod", fs::set_permissions(&file, fs::Permissions::from_mode(0o600)));
    read_only("chown", std::os::unix::fs::chown(&file, Some(0), Some(0)));
    read_only("utimes", File::open(&file).unwrap().set_modified(SystemTime::now()));
    read_only("setxattr", posix::setxattr(&file, "user.new", b"1"));
    read_only("mkfifo", posix::mkfifo(&new));
    assert!(fs::symlink_metadata(&new).is_err());
    mounted.unmount();
}

#[test]
fn files_of_every_kind_can_be_mapped_for_reading_but_not_for_writing() {
    if !fuse_is_here() {
        return;
    }
    let mounted = Mounted::new(fixture("gguf/good/tiny.gguf"));
    for path in ["npy/blk.0.attn_q.weight.npy", "as/f16/blk.0.ffn_down.weight.npy", "raw/token_embd.weight.q4_0", "source/tiny.gguf", "tensors.json"] {
        let Some(path) = existing(&mounted, path) else { continue };
        let file = File::open(&path).unwrap();
        let shared = Mapping::new(&file, libc::PROT_READ, libc::MAP_SHARED).unwrap();
        let private = Mapping::new(&file, libc::PROT_READ, libc::MAP_PRIVATE).unwrap();
        let whole = fs::read(&path).unwrap();
        assert_same("shared", shared.bytes(), &whole);
        assert_same("private", private.bytes(), &whole);
        let written = Mapping::new(&file, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED).map(|_| ());
        assert_eq!(errno(written), libc::EACCES, "{}", path.display());
        Mapping::new(&file, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE).unwrap();
    }
    mounted.unmount();
}

/// A file of the mount; for raw/ whatever type the tensor has.
fn existing(mounted: &Mounted, path: &str) -> Option<std::path::PathBuf> {
    let exact = mounted.path(path);
    if exact.is_file() {
        return Some(exact);
    }
    let stem = Path::new(path).file_stem().unwrap().to_str().unwrap();
    let folder = mounted.path(Path::new(path).parent().unwrap());
    let found = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).find(|p| p.file_stem().unwrap().to_str() == Some(stem));
    assert!(found.is_some(), "{path} is not there");
    found
}

#[test]
fn tensors_have_extended_attributes_and_nothing_else_has() {
    if !fuse_is_here() {
        return;
    }
    let mounted = Mounted::new(fixture("gguf/good/tiny.gguf"));
    for path in ["raw/output_norm.weight.f32", "npy/output_norm.weight.npy", "as/raw-bf16/output_norm.weight.bf16"] {
        let path = mounted.path(path);
        let get = |key: &str| String::from_utf8(posix::getxattr(&path, &format!("user.tensor.{key}")).unwrap()).unwrap();
        assert_eq!(
            (get("name"), get("dtype"), get("shape"), get("source")),
            ("\"output_norm.weight\"".into(), "\"f32\"".into(), "[256]".into(), "\"tiny.gguf\"".into())
        );
        assert!(get("offset").parse::<u64>().unwrap() > 0);
        let mut names = posix::listxattr(&path).unwrap();
        names.sort();
        assert_eq!(names, ["dtype", "name", "offset", "shape", "source"].map(|key| format!("user.tensor.{key}")));
        assert_eq!(errno(posix::getxattr(&path, "user.other")), libc::ENODATA);
        assert_eq!(errno(posix::getxattr(&path, "security.selinux")), libc::EOPNOTSUPP);
    }
    for path in ["info.json", "raw", "source/tiny.gguf", "."] {
        assert_eq!(errno(posix::getxattr(&mounted.path(path), "user.tensor.name")), libc::ENODATA, "{path}");
        assert_eq!(errno(posix::getxattr(&mounted.path(path), "security.selinux")), libc::EOPNOTSUPP, "{path}");
        assert!(posix::listxattr(&mounted.path(path)).unwrap().is_empty(), "{path}");
    }
    mounted.unmount();
}
