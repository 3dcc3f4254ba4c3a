//! How a server starts and ends: the background, signals, busy mounts, dead mounts, replaced mounts, panics.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Mounted, PROGRAM, Place, Running, errno, eventually, fixture, fuse_is_here, has_tool, is_root, posix, run, start, text, until_not_busy};

const SHORT: Duration = Duration::from_secs(8);

fn tiny() -> PathBuf {
    fixture("gguf/good/tiny.gguf")
}

/// A server in the foreground whose mount answers.
fn foreground(place: &Place, point: &str) -> Running {
    let running = start(place.program().arg("-f").arg(tiny()).arg(place.path(point)));
    eventually("the mount in the foreground answers", SHORT, || place.path(point).join("info.json").is_file());
    running
}

#[test]
fn each_signal_unmounts_and_a_mount_point_that_was_made_goes_again() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.path("kept")).unwrap();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        for (point, stays) in [("made", false), ("kept", true)] {
            let server = foreground(&place, point);
            posix::kill(server.pid(), signal);
            let done = server.finish(SHORT);
            assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "signal {signal}");
            assert!(place.mounts().is_empty(), "signal {signal}");
            assert_eq!(place.path(point).exists(), stays, "signal {signal}");
        }
    }
    // The same in the background.
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        run(place.program().arg(tiny()).arg(place.path("made"))).good();
        posix::kill(place.server(), signal);
        place.all_over();
        eventually("the mount point that was made goes", SHORT, || !place.path("made").exists());
    }
}

#[test]
fn many_signals_at_once_do_no_harm() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    for _ in 0..10 {
        let server = foreground(&place, "made");
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGTERM, libc::SIGINT] {
            posix::kill(server.pid(), signal);
        }
        let done = server.finish(SHORT);
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
        assert!(place.mounts().is_empty() && !place.path("made").exists());
    }
}

#[test]
fn a_second_signal_ends_a_server_that_waits_for_its_readers() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    let mut server = foreground(&place, "made");
    let _reader = File::open(place.path("made/info.json")).unwrap();
    posix::kill(server.pid(), libc::SIGTERM);
    eventually("the mount is detached", SHORT, || place.mounts().is_empty());
    assert!(!server.is_over());
    posix::kill(server.pid(), libc::SIGTERM);
    assert_eq!(server.finish(SHORT).code, Some(0));
}

#[test]
fn a_busy_mount_stays_until_a_signal_detaches_it_and_its_reader_reads_to_the_end() {
    if !fuse_is_here() {
        return;
    }
    let mounted = Mounted::new(tiny());
    let whole = fs::read(tiny()).unwrap();
    let mut reader = File::open(mounted.path("source/tiny.gguf")).unwrap();
    let mut half = vec![0; whole.len() / 2];
    reader.read_exact(&mut half).unwrap();
    let refused = run(mounted.place.program().arg("-u").arg(&mounted.point)).refused();
    assert!(refused.contains("busy") && refused.contains("hint: "), "{refused}");
    assert_eq!(text(mounted.path("info.json")).as_bytes()[0], b'{');
    let server = mounted.place.server();
    posix::kill(server, libc::SIGTERM);
    eventually("the mount is detached at once", Duration::from_secs(3), || mounted.place.mounts().is_empty());
    // A file of the same mount that was open, and whose bytes are decoded now.
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    assert!([half, rest].concat() == whole);
    assert_eq!(mounted.place.servers(), [server]);
    drop(reader);
    mounted.place.all_over();
    eventually("the mount point that was made goes", SHORT, || !mounted.point.exists());
}

#[test]
fn every_way_to_unmount_ends_the_server() {
    if !fuse_is_here() {
        return;
    }
    let ways: [(&str, &[&str]); 3] = [("umount", &[]), ("fusermount3", &["-u"]), ("fusermount3", &["-u", "-z"])];
    for (tool, options) in ways {
        if !has_tool(tool) || (tool == "umount" && !is_root()) {
            continue;
        }
        let place = Place::new();
        let server = foreground(&place, "made");
        until_not_busy(Command::new(tool).args(options).arg(place.path("made")));
        let done = server.finish(SHORT);
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{tool} {options:?}");
        assert!(!place.path("made").exists());
    }
}

#[test]
fn unmount_takes_several_points_and_refuses_what_is_not_ours() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    for point in ["a", "b"] {
        run(place.program().arg(tiny()).arg(place.path(point))).good();
    }
    fs::create_dir(place.path("folder")).unwrap();
    let both = run(place.program().arg("-u").args([place.path("a"), place.path("folder"), place.path("b")]));
    assert!(both.refused().contains("folder"));
    place.all_over();
    assert!(run(place.program().arg("-u").arg(place.path("missing"))).refused().contains("missing"));
    // Relative to where it is called.
    run(place.program().arg(tiny()).arg(place.path("a"))).good();
    run(place.program().current_dir(place.root()).args(["-u", "a"])).good();
    place.all_over();
}

#[test]
fn the_same_command_heals_the_mount_of_a_killed_server_and_says_so_in_one_line() {
    if !fuse_is_here() {
        return;
    }
    let mounted = Mounted::new(tiny());
    let Mounted { place, point } = mounted;
    for _ in 0..3 {
        let before = place.server();
        posix::kill(before, libc::SIGKILL);
        eventually("the killed server is gone", SHORT, || place.servers().is_empty());
        let done = run(place.program().arg(tiny()).arg(&point));
        assert_eq!(done.err.lines().count(), 1, "{}", done.err);
        assert!(done.err.starts_with("mount-tensors: ") && done.err.contains("dead mount"), "{}", done.err);
        done.good();
        assert!(text(point.join("info.json")).starts_with('{'));
        assert_eq!(place.mounts().len(), 1);
    }
    // -u takes a dead mount away as well.
    posix::kill(place.server(), libc::SIGKILL);
    eventually("the killed server is gone", SHORT, || place.servers().is_empty());
    place.unmount(&point);
    place.all_over();
}

#[test]
fn a_live_mount_is_replaced_only_on_request() {
    if !fuse_is_here() {
        return;
    }
    let mounted = Mounted::new(tiny());
    let before = mounted.place.server();
    let again = |options: &[&str]| run(mounted.place.program().args(options).arg(fixture("gguf/good/lora.gguf")).arg(&mounted.point));
    let refused = again(&[]).refused();
    assert!(refused.contains("--replace"), "{refused}");
    assert!(again(&["--allow-non-empty"]).refused().contains("--replace"));
    assert_eq!(mounted.place.server(), before);
    assert!(mounted.path("source/tiny.gguf").is_file());
    again(&["--replace"]).good();
    assert!(mounted.path("source/lora.gguf").is_file());
    eventually("the first server ends", SHORT, || mounted.place.servers().len() == 1);
    assert_ne!(mounted.place.server(), before);
    assert_eq!(mounted.place.mounts().len(), 1);
    // One that cannot be opened must not cost the mount that is there.
    let bad = run(mounted.place.program().args(["--replace"]).arg(fixture("gguf/bad/version_4.gguf")).arg(&mounted.point));
    bad.refused();
    assert!(mounted.path("source/lora.gguf").is_file());
    mounted.unmount();
}

#[test]
fn a_server_that_hangs_can_be_unmounted_and_replaced() {
    if !fuse_is_here() {
        return;
    }
    for replace in [true, false] {
        let mounted = Mounted::new(tiny());
        let server = mounted.place.server();
        posix::kill(server, libc::SIGSTOP);
        let tasks = || fs::read_dir(format!("/proc/{server}/task")).unwrap().map(|task| text(task.unwrap().path().join("stat")));
        eventually("every thread of it has stopped", SHORT, || tasks().all(|stat| stat.rsplit(')').next().unwrap().starts_with(" T")));
        if replace {
            let refusal = run(mounted.place.program().arg(tiny()).arg(&mounted.point)).refused();
            assert!(refusal.contains("does not answer") && refusal.contains("--replace"), "{refusal}");
            run(mounted.place.program().arg("--replace").arg(tiny()).arg(&mounted.point)).good();
            assert!(text(mounted.path("info.json")).starts_with('{'));
        } else {
            mounted.place.unmount(&mounted.point);
            assert!(mounted.place.mounts().is_empty());
        }
        posix::kill(server, libc::SIGCONT);
        eventually("the server that hung ends", SHORT, || !mounted.place.servers().contains(&server));
        assert_eq!(mounted.place.mounts().len(), usize::from(replace));
    }
}

#[test]
fn a_mount_whose_parent_was_renamed_is_unmounted_by_a_signal() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.path("before")).unwrap();
    run(place.program().arg(tiny()).arg(place.path("before/mnt"))).good();
    fs::rename(place.path("before"), place.path("after")).unwrap();
    assert!(place.path("after/mnt/info.json").is_file());
    posix::kill(place.server(), libc::SIGTERM);
    eventually("the server has ended", SHORT, || place.servers().is_empty());
    assert!(place.mounts().is_empty());
}

#[test]
fn a_dead_mount_with_an_open_file_is_unmounted() {
    if !fuse_is_here() {
        return;
    }
    let mounted = Mounted::new(tiny());
    let file = File::open(mounted.path("source/tiny.gguf")).unwrap();
    posix::kill(mounted.place.server(), libc::SIGKILL);
    eventually("the killed server is gone", SHORT, || mounted.place.servers().is_empty());
    mounted.place.unmount(&mounted.point);
    assert!(mounted.place.mounts().is_empty());
    drop(file);
}

#[test]
fn a_server_that_was_replaced_leaves_its_successor_alone() {
    if !fuse_is_here() {
        return;
    }
    let mounted = Mounted::new(tiny());
    let first = mounted.place.server();
    let reader = File::open(mounted.path("source/tiny.gguf")).unwrap();
    run(mounted.place.program().arg("--replace").arg(tiny()).arg(&mounted.point)).good();
    // The first one serves its reader still, is told to stop, and ends when the reader does.
    reader.read_exact_at(&mut [0; 100], 20_000).unwrap();
    posix::kill(first, libc::SIGTERM);
    std::thread::sleep(Duration::from_millis(100));
    reader.read_exact_at(&mut [0; 100], 30_000).unwrap();
    assert!(text(mounted.path("info.json")).starts_with('{'));
    drop(reader);
    eventually("the first server ends", SHORT, || !mounted.place.servers().contains(&first));
    assert!(text(mounted.path("tensors.json")).starts_with('['));
    assert_eq!(mounted.place.mounts().len(), 1);
    mounted.unmount();
}

#[test]
fn mounting_again_at_once_works_whoever_removes_the_folder() {
    if !fuse_is_here() {
        return;
    }
    let mounted = Mounted::new(tiny());
    for _ in 0..20 {
        run(mounted.place.program().arg("--replace").arg(tiny()).arg(&mounted.point)).good();
        assert!(text(mounted.path("info.json")).starts_with('{'));
        assert_eq!(mounted.place.mounts().len(), 1);
    }
    eventually("only the last server is left", SHORT, || mounted.place.servers().len() == 1);
    // Nor does it matter that -u returns before the server has removed the folder.
    for _ in 0..20 {
        mounted.place.unmount(&mounted.point);
        run(mounted.place.program().arg(tiny()).arg(&mounted.point)).good();
        assert!(text(mounted.path("info.json")).starts_with('{'));
    }
    mounted.unmount();
}

#[test]
fn a_mount_of_somebody_else_is_never_touched() {
    if !fuse_is_here() || !is_root() {
        return;
    }
    let place = Place::new();
    let point = place.path("theirs");
    fs::create_dir(&point).unwrap();
    run(Command::new("mount").args(["-t", "tmpfs", "theirs"]).arg(&point)).good();
    fs::write(point.join("file"), "theirs").unwrap();
    for options in [&[][..], &["--replace"]] {
        assert!(run(place.program().args(options).arg(tiny()).arg(&point)).refused().contains("not empty"));
    }
    assert!(run(place.program().arg("-u").arg(&point)).refused().contains("is not a mount of mount-tensors"));
    assert_eq!(text(point.join("file")), "theirs");
    run(place.program().args(["--replace", "--allow-non-empty"]).arg(tiny()).arg(&point)).good();
    assert!(point.join("info.json").is_file());
    place.unmount(&point);
    assert_eq!(text(point.join("file")), "theirs");
    eventually("only the other mount is left", SHORT, || place.servers().is_empty() && place.mounts().len() == 1);
}

#[test]
fn the_server_holds_nothing_that_it_has_inherited() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.path("start")).unwrap();
    fs::write(place.path("inherited"), "x").unwrap();
    // A shell that waits for the end of the output, and leaves files open for its children.
    let script = "exec 7<../inherited 8>../written; x=$(\"$0\" \"$1\" \"$2\" 2>&1); echo \"answer:$x\"";
    let mut shell = Command::new("sh");
    place.mark(&mut shell);
    shell.current_dir(place.path("start")).args(["-c", script, PROGRAM]).arg(tiny()).arg(place.path("mnt"));
    let answer = run(&mut shell).good();
    let point = place.path("mnt");
    let load = format!("np.load(\"{}/npy/", point.display());
    assert!(answer.starts_with(&format!("answer:{}: 12 tensors of 1 file\n", point.display())) && answer.contains(&load), "{answer}");
    let server = place.server();
    let own = fs::canonicalize(tiny()).unwrap();
    for entry in fs::read_dir(format!("/proc/{server}/fd")).unwrap() {
        let link = entry.unwrap().path();
        let Ok(target) = fs::read_link(&link) else { continue };
        let shown = target.to_string_lossy().into_owned();
        // A file system that is mounted nowhere shows as the root, which it is not.
        let detached = shown == "/" && fs::metadata(&link).unwrap().dev() != fs::metadata("/").unwrap().dev();
        assert!(["/dev/null", "/dev/fuse"].contains(&shown.as_str()) || target == own || shown.starts_with("anon_inode:") || detached, "it holds {shown}");
    }
    assert_eq!(fs::read_link(format!("/proc/{server}/cwd")).unwrap(), PathBuf::from("/"));
    fs::remove_dir(place.path("start")).unwrap();
    let stat = text(format!("/proc/{server}/stat"));
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    assert_eq!((fields[3], fields[4]), (server.to_string().as_str(), "0"), "a session of its own, without a terminal");
    place.unmount(place.path("mnt"));
    place.all_over();
}

#[test]
fn it_starts_under_a_terminal_that_closes_at_once() {
    if !fuse_is_here() || !has_tool("script") {
        return;
    }
    let place = Place::new();
    for _ in 0..15 {
        let mut script = Command::new("script");
        place.mark(&mut script);
        let command = format!("'{PROGRAM}' '{}' '{}'", tiny().display(), place.path("mnt").display());
        run(script.args(["-qec", &command, "/dev/null"])).good();
        assert!(text(place.path("mnt/info.json")).starts_with('{'));
        std::thread::sleep(Duration::from_millis(20));
        assert!(text(place.path("mnt/issues.json")).starts_with("[]"), "it went with its terminal");
        place.unmount(place.path("mnt"));
        place.all_over();
    }
}

#[test]
fn twenty_rounds_leave_nothing_behind() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    let point = place.path("mnt");
    for round in 0..20 {
        let started = Instant::now();
        run(place.program().arg(tiny()).arg(&point)).good();
        assert!(text(point.join("info.json")).starts_with('{'));
        place.unmount(&point);
        place.all_over();
        eventually("the mount point that was made goes", SHORT, || !point.exists());
        assert!(started.elapsed() < Duration::from_secs(10), "round {round}");
    }
    assert_eq!(fs::read_dir(place.root()).unwrap().count(), 0, "files are left behind");
}

#[test]
fn a_panic_costs_the_request_that_it_is_in_and_nothing_else() {
    if !fuse_is_here() {
        return;
    }
    if !cfg!(debug_assertions) {
        crate::common::skipped("panics can be injected in debug builds only");
        return;
    }
    let place = Place::new();
    let source = place.path("ramp.gguf");
    crate::common::gguf::ramp(&source, 1 << 20);
    let log = place.path("log");
    let mut command = place.program();
    command.env("MOUNT_TENSORS_TEST_PANIC_AT", "1048576").arg("--log-file").arg(&log);
    run(command.arg(&source).arg(place.path("mnt"))).good();
    let file = File::open(place.path("mnt/raw/ramp.f32")).unwrap();
    // Without read-ahead, so that the request is the one that is meant.
    posix::no_read_ahead(&file);
    let mut bytes = [0u8; 4096];
    for _ in 0..20 {
        assert_eq!(errno(file.read_at(&mut bytes, 1 << 20)), libc::EIO);
    }
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().enumerate().all(|(i, b)| *b == (i % 251) as u8));
    file.read_exact_at(&mut bytes, 2 << 20).unwrap();
    assert!(text(place.path("mnt/tensors.json")).starts_with('['));
    assert!(text(&log).contains("injected by a test") && text(&log).contains("because of a bug"), "{}", text(&log));
    drop(file);
    place.unmount(place.path("mnt"));
    place.all_over();
}
