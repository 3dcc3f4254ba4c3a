//! Options, exit codes, and who may do what.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Done, Mounted, PROGRAM, Place, errno, fixture, fuse_is_here, has_tool, is_root, posix, run, skipped, text};

/// A user who owns nothing.
const NOBODY: u32 = 65534;

fn tiny() -> PathBuf {
    fixture("gguf/good/tiny.gguf")
}

fn names(folder: impl AsRef<Path>) -> BTreeSet<String> {
    fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|n| (*n).to_string()).collect()
}

/// Runs a command as [`NOBODY`].
fn as_nobody(place: &Place, command: &[&str], path: &Path) -> Done {
    let mut setpriv = Command::new("setpriv");
    place.mark(&mut setpriv);
    setpriv.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).args(command).arg(path);
    run(&mut setpriv)
}

/// Lets everybody into a place.
fn open_to_all(place: &Place) {
    fs::set_permissions(place.root(), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn usage_errors_exit_with_2_and_a_message() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    let (source, point) = (tiny(), place.path("mnt"));
    let (source, point) = (source.to_str().unwrap(), point.to_str().unwrap());
    let cases: [&[&str]; 12] = [
        &[],
        &["--no-such-flag", source, point],
        &[source],
        &["--views", "raw,other", source, point],
        &["--umask", "999", source, point],
        &["--umask", "7777", source, point],
        &["--uid", "root", source, point],
        &["-o", "no_such_option", source, point],
        &["-o", "uid=x", source, point],
        &["-u"],
        &["cat", source],
        &["export", source, "raw"],
    ];
    for case in cases {
        let done = run(place.program().args(case));
        assert_eq!(done.code, Some(2), "{case:?}: {}", done.err);
        assert!(done.err.len() > 20 && done.out.is_empty(), "{case:?}: {}", done.err);
        assert!(!done.err.contains("panicked"), "{case:?}: {}", done.err);
    }
    assert!(!Path::new(point).exists() && place.servers().is_empty());
    for good in ["--help", "-h", "--version", "-V"] {
        assert!(!run(place.program().arg(good)).good().is_empty());
    }
}

/// What the fixtures call bad: files, and the indexes of folders.
fn bad() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for format in fs::read_dir(fixture("")).unwrap().map(|e| e.unwrap().path().join("bad")).filter(|p| p.is_dir()) {
        for entry in fs::read_dir(format).unwrap().map(|e| e.unwrap().path()) {
            if entry.is_dir() {
                found.extend(fs::read_dir(entry).unwrap().map(|e| e.unwrap().path()).filter(|p| p.to_string_lossy().ends_with(".index.json")));
            } else {
                found.push(entry);
            }
        }
    }
    assert!(found.len() > 40);
    found
}

#[test]
fn a_refusal_is_one_message_and_exit_code_1() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    let point = place.path("mnt");
    for source in bad() {
        let refused = run(place.program().arg(&source).arg(&point)).refused();
        assert!(refused.contains(source.file_name().unwrap().to_str().unwrap()), "it names no file: {refused}");
    }
    fs::create_dir(place.path("empty")).unwrap();
    fs::write(place.path("zero.gguf"), "").unwrap();
    fs::write(place.path("text"), "hello").unwrap();
    for source in ["missing.gguf", "empty", "zero.gguf", "text"] {
        assert!(run(place.program().arg(place.path(source)).arg(&point)).refused().contains(source));
    }
    posix::mkfifo(&place.path("fifo")).unwrap();
    assert!(run(place.program().arg(place.path("fifo")).arg(&point)).refused().contains("fifo"));
    assert!(run(place.program().arg("/dev/zero").arg(&point)).refused().contains("/dev/zero"));
    let log = run(place.program().args(["--log-file", "/no/such/folder/log"]).arg(tiny()).arg(&point)).refused();
    assert!(log.contains("/no/such/folder/log"), "{log}");
    assert!(!point.exists() && place.mounts().is_empty() && place.servers().is_empty());
}

#[test]
fn no_file_makes_it_allocate_by_a_number_that_it_has_not_checked() {
    if !fuse_is_here() || !has_tool("prlimit") {
        return;
    }
    let place = Place::new();
    for source in bad() {
        let mut limited = Command::new("prlimit");
        place.mark(&mut limited);
        limited.args(["--data=536870912", "--", PROGRAM]).arg(&source).arg(place.path("mnt"));
        run(&mut limited).refused();
    }
    let mut limited = Command::new("prlimit");
    place.mark(&mut limited);
    run(limited.args(["--data=536870912", "--", PROGRAM]).arg(tiny()).arg(place.path("mnt"))).good();
    assert!(text(place.path("mnt/tensors.json")).starts_with('['));
}

#[test]
fn views_choose_among_the_folders() {
    if !fuse_is_here() {
        return;
    }
    let documents = ["info.json", "issues.json", "tensors.json", "metadata.json"];
    let with = |extra: &[&str]| documents.iter().chain(extra).map(|n| (*n).to_string()).collect::<BTreeSet<_>>();
    let cases: [(&str, &[&str], &[&str]); 6] = [
        ("raw", &["raw"], &[]),
        ("raw,npy,source", &["raw", "npy", "source"], &[]),
        ("f16,raw-bf16", &["as"], &["f16", "raw-bf16"]),
        ("as", &["as"], &["f32", "f16", "bf16", "raw-f32", "raw-f16", "raw-bf16", "bits"]),
        ("metadata,tokenizer", &["metadata", "tokenizer"], &[]),
        ("bits", &["as"], &["bits"]),
    ];
    for (list, top, inner) in cases {
        let mounted = Mounted::with(tiny(), &["--views", list]);
        assert_eq!(names(&mounted.point), with(top), "{list}");
        assert_eq!(mounted.path("as").exists(), !inner.is_empty(), "{list}");
        if !inner.is_empty() {
            assert_eq!(names(mounted.path("as")), set(inner), "{list}");
        }
        mounted.unmount();
    }
}

#[test]
fn mount_options_are_long_options_and_generic_ones_are_accepted() {
    if !fuse_is_here() {
        return;
    }
    // Root sees what belongs to somebody else; an ordinary user would not.
    let uid = if posix::user() == 0 { NOBODY } else { posix::user() };
    let owner = format!("uid={uid},gid=12");
    let list = format!("ro,nosuid,nodev,noatime,noauto,user,_netdev,x-systemd.automount,umask=027,{owner},views=raw,default_permissions,fsname=x");
    for options in [&["-o", &list][..], &[&format!("-o{list}")], &["-o", "ro,umask=027,views=raw", "-o", &owner]] {
        let mounted = Mounted::with(tiny(), options);
        assert_eq!(names(&mounted.point), set(&["raw", "info.json", "issues.json", "tensors.json", "metadata.json"]));
        for (path, mode) in [("info.json", 0o100_440), ("raw", 0o40_550), ("raw/output_norm.weight.f32", 0o100_440)] {
            let meta = fs::metadata(mounted.path(path)).unwrap();
            assert_eq!((meta.mode(), meta.uid(), meta.gid()), (mode, uid, 12), "{path}");
        }
        assert!(mounted.line().options.contains("default_permissions"));
        mounted.unmount();
    }
    if !is_root() {
        return;
    }
    // As mount(8) calls a helper: options last.
    let place = Place::new();
    run(place.program().arg(tiny()).arg(place.path("mnt")).args(["-o", "rw,dev,suid,allow_other"])).good();
    let options = place.mounts()[0].options.clone();
    assert!(options.contains("allow_other") && options.contains("ro") && options.contains("nosuid") && options.contains("nodev"), "{options:?}");
}

#[test]
fn mount_8_and_fstab_lines_work() {
    if !fuse_is_here() || !is_root() || !has_tool("mount.fuse3") {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.path("mnt")).unwrap();
    // mount.fuse3 looks for the program in the system's folders only, so that one that is not installed is named by its path.
    let mut mount = Command::new("mount");
    place.mark(&mut mount);
    mount.args(["-t", "fuse", &format!("{PROGRAM}#{}", tiny().display())]).arg(place.path("mnt")).args(["-o", "ro,nofail,user,x-gvfs-hide,views=raw"]);
    run(&mut mount).good();
    assert!(place.path("mnt/raw/output_norm.weight.f32").is_file());
    run(Command::new("umount").arg(place.path("mnt"))).good();
    place.all_over();
}

#[test]
fn others_may_enter_only_when_they_are_allowed() {
    if !fuse_is_here() || !is_root() || !has_tool("setpriv") {
        return;
    }
    let mounted = Mounted::new(tiny());
    open_to_all(&mounted.place);
    let denied = as_nobody(&mounted.place, &["ls"], &mounted.point);
    assert!(denied.code != Some(0) && denied.err.contains("Permission denied"), "{denied:?}");
    mounted.unmount();

    let mounted = Mounted::with(tiny(), &["--allow-other"]);
    open_to_all(&mounted.place);
    assert!(mounted.line().options.contains("allow_other"));
    assert!(as_nobody(&mounted.place, &["ls"], &mounted.point).good().contains("tensors.json"));
    assert!(as_nobody(&mounted.place, &["cat"], &mounted.path("info.json")).good().starts_with('{'));
    mounted.unmount();

    // Everything belongs to somebody else, and only they may read it.
    let mounted = Mounted::with(tiny(), &["--allow-other", "--umask", "077", "--uid", "1234"]);
    open_to_all(&mounted.place);
    let denied = as_nobody(&mounted.place, &["ls"], &mounted.point);
    assert!(denied.code != Some(0) && denied.err.contains("Permission denied"), "{denied:?}");
    mounted.unmount();
    let mounted = Mounted::with(tiny(), &["--allow-other", "--umask", "077", "--uid", "65534"]);
    open_to_all(&mounted.place);
    assert!(as_nobody(&mounted.place, &["cat"], &mounted.path("info.json")).good().starts_with('{'));
    mounted.unmount();
}

/// A folder that an ordinary user owns, with a copy of the program and a source in it.
fn home() -> Place {
    let place = Place::new();
    open_to_all(&place);
    fs::create_dir(place.path("home")).unwrap();
    let program = place.path("home").join(Path::new(PROGRAM).file_name().unwrap());
    fs::copy(PROGRAM, &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let source = place.copy("gguf/good/tiny.gguf", "home/tiny.gguf");
    fs::set_permissions(&source, fs::Permissions::from_mode(0o644)).unwrap();
    std::os::unix::fs::chown(place.path("home"), Some(NOBODY), Some(NOBODY)).unwrap();
    place
}

/// Runs a script as an ordinary user, in a mount name space where /dev/fuse is open to all, as it is on ordinary systems.
fn as_ordinary_user(place: &Place, script: &str) -> Option<Done> {
    if !["unshare", "setpriv", "fusermount3", "mknod"].into_iter().all(has_tool) {
        return None;
    }
    let helper = ["/usr/bin/fusermount3", "/bin/fusermount3"].iter().find_map(|p| fs::metadata(p).ok());
    if helper.is_none_or(|m| m.mode() & 0o4000 == 0) {
        skipped("fusermount3 is not setuid here");
        return None;
    }
    let prepare = "mknod -m 666 \"$1/fuse\" c 10 229 && mount --bind \"$1/fuse\" /dev/fuse && cd \"$1/home\" || exit 99
        exec setpriv --reuid=65534 --regid=65534 --clear-groups -- sh -c \"$2\"";
    let mut command = Command::new("unshare");
    place.mark(&mut command);
    command.args(["-m", "--", "sh", "-c", prepare, "sh"]).arg(place.root()).arg(script);
    let done = run(&mut command);
    let _ = fs::remove_file(place.path("fuse"));
    if done.code == Some(99) {
        skipped(&format!("no device can be made here: {}", done.err));
        return None;
    }
    Some(done)
}

#[test]
fn an_ordinary_user_mounts_reads_and_unmounts() {
    if !fuse_is_here() || !is_root() {
        return;
    }
    let place = home();
    let script = "set -e
        ./mount-tensors -q tiny.gguf mnt
        grep \"$PWD/mnt fuse.mount-tensors \" /proc/mounts
        stat -c '%u %g %a %h' mnt mnt/info.json
        cmp mnt/source/tiny.gguf tiny.gguf
        wc -c < mnt/as/f32/token_embd.weight.npy
        if ./mount-tensors tiny.gguf mnt; then exit 50; fi
        ./mount-tensors -q --replace tiny.gguf mnt
        ./mount-tensors -u mnt
        ./mount-tensors -q tiny.gguf mnt
        ./mount-tensors -u mnt
        if ./mount-tensors --allow-other tiny.gguf mnt; then exit 51; fi";
    let Some(done) = as_ordinary_user(&place, script) else { return };
    assert_eq!(done.code, Some(0), "{}", done.err);
    let out = String::from_utf8(done.out).unwrap();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("tiny.gguf ") && lines[0].contains(" ro,nosuid,nodev"), "{out}");
    assert!(!lines[0].contains("allow_other") && lines[0].contains("user_id=65534"), "{out}");
    assert_eq!(lines[1..3], ["65534 65534 555 8", "65534 65534 444 1"]);
    assert!(done.err.contains("--replace") && done.err.contains("user_allow_other"), "{}", done.err);
    assert!(!done.err.contains("panicked"), "{}", done.err);
    place.all_over();
}

#[test]
fn an_ordinary_user_heals_a_dead_mount_and_is_told_that_it_is_busy() {
    if !fuse_is_here() || !is_root() {
        return;
    }
    let place = home();
    // The servers are known by the variable that only this test's processes have.
    let script = "set -e
        server() {
            for p in /proc/[0-9]*; do
                case \"$(readlink $p/exe)\" in */mount-tensors) grep -qs \"MOUNT_TENSORS_TEST_PLACE=$MOUNT_TENSORS_TEST_PLACE\" $p/environ && echo ${p#/proc/};; esac
            done 2>/dev/null
            true
        }
        ./mount-tensors -q tiny.gguf mnt
        exec 5<mnt/info.json
        if ./mount-tensors -u mnt; then exit 50; fi
        exec 5<&-
        kill -9 $(server)
        sleep 0.2
        ./mount-tensors -q tiny.gguf mnt
        head -c 1 mnt/info.json
        kill -TERM $(server)
        for i in 1 2 3 4 5 6 7 8 9 10; do grep -q \"$PWD/mnt fuse.mount-tensors\" /proc/mounts || exit 0; sleep 0.2; done
        exit 51";
    let Some(done) = as_ordinary_user(&place, script) else { return };
    assert_eq!(done.code, Some(0), "{}", done.err);
    assert_eq!(done.out, b"{");
    assert!(done.err.contains("busy") && done.err.contains("dead mount"), "{}", done.err);
    place.all_over();
}

#[test]
fn a_user_who_may_not_open_the_device_is_told_so_and_of_the_commands_that_need_no_mount() {
    if !fuse_is_here() || !is_root() || !has_tool("setpriv") {
        return;
    }
    if fs::metadata("/dev/fuse").unwrap().mode() & 0o6 == 0o6 {
        skipped("everybody may open /dev/fuse here");
        return;
    }
    let place = home();
    let program = place.path("home/mount-tensors");
    let refused = as_nobody(&place, &["sh", "-c", "cd \"$(dirname \"$0\")\" && exec \"$0\" tiny.gguf mnt"], &program).refused();
    assert!(refused.contains("/dev/fuse") && refused.contains("ls, cat, export and check"), "{refused}");
    assert!(!place.path("home/mnt").exists());
    let listed = as_nobody(&place, &["sh", "-c", "cd \"$(dirname \"$0\")\" && exec \"$0\" ls tiny.gguf"], &program).good();
    assert!(listed.contains("tensors.json"));
    // A mount point that is somebody else's.
    assert_eq!(errno(fs::metadata(place.path("home/mnt"))), libc::ENOENT);
}

#[test]
fn a_missing_device_is_named_at_once_with_its_cure() {
    if !fuse_is_here() || !is_root() || !has_tool("unshare") {
        return;
    }
    let place = Place::new();
    let mut command = Command::new("unshare");
    place.mark(&mut command);
    // A /dev of its own without anything in it.
    let script = "mount -t tmpfs none /dev || exit 99; exec \"$0\" \"$@\"";
    let started = std::time::Instant::now();
    let done = run(command.args(["-m", "--", "sh", "-c", script, PROGRAM]).arg(tiny()).arg(place.path("mnt")));
    if done.code == Some(99) {
        skipped(&format!("no other /dev can be had here: {}", done.err));
        return;
    }
    let refused = done.refused();
    assert!(refused.contains("/dev/fuse") && refused.contains("--device /dev/fuse"), "{refused}");
    assert!(started.elapsed() < std::time::Duration::from_secs(5));
    assert!(!place.path("mnt").exists());
}

#[test]
fn the_log_says_who_owns_the_mount_and_whether_others_may_enter() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    let log = place.path("log");
    run(place.program().args(["-v", "--log-file"]).arg(&log).arg(tiny()).arg(place.path("mnt"))).good();
    place.unmount(place.path("mnt"));
    place.all_over();
    let log = text(&log);
    assert!(log.contains(&format!("owned by user {}", posix::user())) && log.contains("nobody else may enter"), "{log}");
    // Under -q only errors are told, and standard output stays empty.
    let quiet = run(place.program().arg("-q").arg(fixture("gguf/degraded/unknown_type.gguf")).arg(place.path("mnt")));
    assert_eq!((quiet.code, quiet.err.as_str(), quiet.out.as_slice()), (Some(0), "", &b""[..]));
}
