//! The ways in which open files are served: kept, direct, passed on; that they never get into each other's way, and that memory stays bounded.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::gguf::{F16, F32, Tensor};
use crate::common::posix::Mapping;
use crate::common::{Mounted, Place, errno, eventually, fuse_is_here, gguf, has_tool, is_root, run, skipped, text};

const MIB: u64 = 1 << 20;

/// Tensors whose bytes count up modulo 251, from a start that is different for each: tensor `I` begins with `I`.
fn ramps(path: &Path, sizes: &[u64], kind: u32) {
    let element = if kind == F32 { 4 } else { 2 };
    let tensors: Vec<Tensor> =
        sizes.iter().enumerate().map(|(i, size)| Tensor { name: format!("t{i}"), dims: vec![size / element], kind, bytes: *size }).collect();
    gguf::sparse(path, &tensors);
    let file = File::options().write(true).open(path).unwrap();
    let mut at = file.metadata().unwrap().len() - sizes.iter().map(|size| size.next_multiple_of(32)).sum::<u64>();
    for (i, size) in sizes.iter().enumerate() {
        let bytes: Vec<u8> = (i as u64..i as u64 + size).map(|n| (n % 251) as u8).collect();
        file.write_all_at(&bytes, at).unwrap();
        at += size.next_multiple_of(32);
    }
}

fn is_ramp(bytes: &[u8], start: u64) -> bool {
    bytes.iter().zip(start..).all(|(byte, n)| u64::from(*byte) == n % 251)
}

/// Reads a file as `dd` does.
fn read(path: &Path) -> Vec<u8> {
    let mut file = File::open(path).unwrap();
    let (mut all, mut part) = (Vec::new(), vec![0; MIB as usize]);
    loop {
        match file.read(&mut part).unwrap() {
            0 => return all,
            n => all.extend_from_slice(&part[..n]),
        }
    }
}

fn mounted(sizes: &[u64], kind: u32, options: &[&str]) -> Mounted {
    let place = Place::new();
    let source = place.path("ramps.gguf");
    ramps(&source, sizes, kind);
    let log = place.path("log").into_os_string().into_string().unwrap();
    let point = place.path("mnt");
    let mut command = place.program();
    run(command.env("RUST_LOG", "debug,fuser=off").args(["--log-file", &log]).args(options).arg(&source).arg(&point)).good();
    Mounted { place, point }
}

/// Which inodes were put into huge pages so far.
fn filled(mounted: &Mounted) -> Vec<String> {
    let log = text(mounted.place.path("log"));
    log.lines()
        .filter(|line| line.contains("put into huge pages in"))
        .map(|line| line.split("inode ").nth(1).unwrap().split(':').next().unwrap().to_string())
        .collect()
}

/// Whether huge pages can be had here, which needs CAP_SYS_ADMIN and a kernel that has them; said aloud if not.
fn has_pool(mounted: &Mounted) -> bool {
    let log = text(mounted.place.path("log"));
    let none = log.lines().find(|line| line.contains("no tensor is put into huge pages"));
    none.inspect(|line| skipped(line)).is_none()
}

#[test]
fn tensors_that_are_read_again_are_served_from_memory_and_glances_fill_nothing() {
    if !fuse_is_here() {
        return;
    }
    let mounted = mounted(&[20 * MIB, 9 * MIB + 6, MIB, 300 * MIB], F16, &[]);
    let paths: Vec<PathBuf> = ["raw/t0.f16", "as/raw-f32/t1.f32", "raw/t2.f16"].iter().map(|path| mounted.path(path)).collect();
    let first: Vec<Vec<u8>> = paths.iter().map(|path| read(path)).collect();
    assert!(is_ramp(&first[0], 0) && is_ramp(&first[2], 2));
    assert_eq!(first[1].len() as u64, 2 * (9 * MIB + 6));
    let inode = |path: &PathBuf| fs::metadata(path).unwrap().ino().to_string();
    if is_root() && has_pool(&mounted) {
        assert_eq!(filled(&mounted), Vec::<String>::new(), "one pass over a model puts nothing there");
    }
    for _ in 0..3 {
        for (path, first) in paths.iter().zip(&first) {
            assert!(read(path) == *first, "{}", path.display());
            let file = File::open(path).unwrap();
            assert!(Mapping::new(&file, libc::PROT_READ, libc::MAP_SHARED).unwrap().bytes() == first, "{}", path.display());
        }
    }
    // Glances at what was never read.
    for _ in 0..5 {
        let mut start = [0; 100];
        File::open(mounted.path("raw/t3.f16")).unwrap().read_exact(&mut start).unwrap();
        assert!(is_ramp(&start, 3));
    }
    if is_root() && has_pool(&mounted) {
        let mut inodes: Vec<String> = paths[..2].iter().map(inode).collect();
        let mut done = filled(&mounted);
        inodes.sort();
        done.sort();
        assert_eq!(done, inodes, "the two large ones, once each: {}", text(mounted.place.path("log")));
    }
    mounted.unmount();
}

#[test]
fn what_is_mapped_stays_right_when_its_memory_is_wanted_for_other_tensors() {
    if !fuse_is_here() {
        return;
    }
    // Room for two of the five.
    let mounted = mounted(&[8 * MIB; 5], F32, &["--memory-budget", "20M"]);
    let path = |i: usize| mounted.path(format!("raw/t{i}.f32"));
    let mut maps = Vec::new();
    for round in 0..3 {
        for i in 0..5 {
            for _ in 0..2 {
                assert!(is_ramp(&read(&path(i)), i as u64), "round {round}, tensor {i}");
            }
            if round == 1 && i % 2 == 0 {
                // The file is closed while it is mapped: all that the server can see is that nobody has it open.
                maps.push((i, Mapping::new(&File::open(path(i)).unwrap(), libc::PROT_READ, libc::MAP_SHARED).unwrap()));
            }
        }
    }
    for (i, map) in &maps {
        assert!(is_ramp(map.bytes(), *i as u64), "the mapping of tensor {i}");
    }
    if is_root() && has_pool(&mounted) {
        assert!(filled(&mounted).len() > 2, "{:?}", filled(&mounted));
    }
    drop(maps);
    mounted.unmount();
}

#[test]
fn the_user_decides_what_is_kept() {
    if !fuse_is_here() {
        return;
    }
    for options in [&["--cache=always"][..], &["--cache=never"], &["-o", "cache=never"], &["--memory-budget=0"], &["--memory-budget", "4M"]] {
        let mounted = mounted(&[9 * MIB, 12], F32, options);
        for _ in 0..3 {
            assert!(is_ramp(&read(&mounted.path("raw/t0.f32")), 0), "{options:?}");
            let file = File::open(mounted.path("raw/t0.f32")).unwrap();
            assert!(is_ramp(Mapping::new(&file, libc::PROT_READ, libc::MAP_PRIVATE).unwrap().bytes(), 0), "{options:?}");
            assert!(is_ramp(Mapping::new(&file, libc::PROT_READ, libc::MAP_SHARED).unwrap().bytes(), 0), "{options:?}");
            assert!(is_ramp(&read(&mounted.path("raw/t1.f32")), 1), "{options:?}");
            let whole = read(&mounted.path("source/ramps.gguf"));
            assert!(whole == fs::read(mounted.place.path("ramps.gguf")).unwrap());
        }
        assert_eq!(filled(&mounted), Vec::<String>::new(), "{options:?}");
        mounted.unmount();
    }
    let place = Place::new();
    for options in [["--cache", "sometimes"], ["--memory-budget", "much"], ["--memory-budget", "99999999999T"]] {
        let done = run(place.program().args(options).arg("x.gguf").arg(place.path("mnt")));
        assert_eq!(done.code, Some(2), "{options:?}");
    }
}

/// Pages in a pipe belong to nobody who could be asked.
#[test]
fn what_lies_in_a_pipe_stays_right_when_its_memory_is_given_back() {
    if !fuse_is_here() {
        return;
    }
    let mounted = mounted(&[8 * MIB; 6], F32, &["--memory-budget", "20M"]);
    let path = |i: usize| mounted.path(format!("raw/t{i}.f32"));
    for _ in 0..3 {
        assert!(is_ramp(&read(&path(0)), 0));
    }
    let (mut from, to) = std::io::pipe().unwrap();
    let file = File::open(path(0)).unwrap();
    let moved = crate::common::posix::splice(&file, &to, 60_000).unwrap();
    drop((file, to));
    for i in (1..6).cycle().take(20) {
        assert!(is_ramp(&read(&path(i)), i as u64));
    }
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    assert!(bytes.len() == moved && moved > 0 && is_ramp(&bytes, 0), "{moved} bytes");
    mounted.unmount();
}

/// Opens, checks and closes a file again and again; how is the first argument.
const READER: &str = r#"
import mmap, os, sys
way, path, expected, rounds = sys.argv[1], sys.argv[2], open(sys.argv[3], "rb").read(), int(sys.argv[4])
for _ in range(rounds):
    flags = os.O_RDONLY | (os.O_DIRECT if way == "direct" else 0)
    fd = os.open(path, flags)
    if way in ("mapped", "private"):
        view = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED if way == "mapped" else mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        os.close(fd)
        assert view[:] == expected, way
        view.close()
        continue
    buffer = mmap.mmap(-1, 1 << 20)
    at = 0
    while True:
        n = os.preadv(fd, [buffer], at)
        if n == 0:
            break
        assert buffer[:n] == expected[at:at + n], (way, at)
        at += n
    assert at == len(expected), (way, at)
    os.close(fd)
"#;

#[test]
fn one_tensor_opened_in_every_way_by_16_processes_at_once() {
    if !fuse_is_here() || !has_tool("python3") {
        return;
    }
    for options in [&[][..], &["--memory-budget=0"], &["--cache=always"], &["--cache=never"]] {
        let mounted = mounted(&[6 * MIB, 5 * MIB], F16, options);
        let original = mounted.place.path("ramps.gguf");
        let expected = mounted.place.path("expected");
        fs::write(&expected, read(&mounted.path("raw/t1.f16"))).unwrap();
        let decoded = mounted.place.path("decoded");
        fs::write(&decoded, read(&mounted.path("as/raw-f32/t0.f32"))).unwrap();
        let files = [("raw/t1.f16", &expected), ("as/raw-f32/t0.f32", &decoded), ("source/ramps.gguf", &original)];
        let mut readers = Vec::new();
        for number in 0..16 {
            let way = ["cached", "mapped", "direct", "private"][number % 4];
            let (path, expected) = files[if number < 12 { number / 4 % 2 } else { 2 }];
            let mut command = Command::new("python3");
            command.args(["-c", READER, way]).arg(mounted.path(path)).arg(expected).arg("12");
            readers.push((way, path, std::thread::spawn(move || run(&mut command))));
        }
        for (way, path, reader) in readers {
            let done = reader.join().unwrap();
            assert_eq!(done.code, Some(0), "{options:?}, {way} {path}: {}", done.err);
        }
        if options.is_empty() && is_root() && has_pool(&mounted) {
            assert!(filled(&mounted).len() >= 2, "both tensors were read from memory as well");
        }
        mounted.unmount();
    }
}

#[test]
fn a_source_that_changes_is_not_served_from_memory_either() {
    if !fuse_is_here() {
        return;
    }
    let mounted = mounted(&[8 * MIB], F32, &[]);
    for _ in 0..3 {
        assert!(is_ramp(&read(&mounted.path("raw/t0.f32")), 0));
        read(&mounted.path("source/ramps.gguf"));
    }
    if is_root() && has_pool(&mounted) {
        assert_eq!(filled(&mounted).len(), 1);
    }
    let file = File::options().write(true).open(mounted.place.path("ramps.gguf")).unwrap();
    file.write_all_at(b"other", 4096).unwrap();
    for path in ["raw/t0.f32", "source/ramps.gguf"] {
        let open = || fs::read(mounted.path(path));
        eventually("new readers are refused", Duration::from_secs(5), || open().is_err());
        assert_eq!(errno(open()), libc::EIO);
    }
    mounted.unmount();
}

/// A memory control group with a limit, for as long as it lives.
struct Group(PathBuf);

impl Group {
    fn new(purpose: &str, limit: u64) -> Option<Self> {
        let name = format!("mount-tensors-test-{purpose}-{}", std::process::id());
        let (first, second) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let (folder, file) = if first.is_dir() { (first.join(name), "memory.limit_in_bytes") } else { (second.join(name), "memory.max") };
        let made = fs::create_dir(&folder).and_then(|()| fs::write(folder.join(file), limit.to_string()));
        match made {
            Ok(()) => Some(Self(folder)),
            Err(e) => {
                skipped(&format!("no memory control group can be made here: {e}"));
                let _ = fs::remove_dir(&folder);
                None
            }
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]).arg(&self.0).arg(program);
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_group_with_256_mb_of_memory_is_enough() {
    if !fuse_is_here() || !is_root() {
        return;
    }
    let Some(group) = Group::new("small", 256 * MIB) else { return };
    let place = Place::new();
    let source = place.path("ramps.gguf");
    ramps(&source, &[150 * MIB, 60 * MIB, 60 * MIB, 60 * MIB, 10 * MIB], F16);
    let point = place.path("mnt");
    let mut mount = group.command(crate::common::PROGRAM);
    place.mark(&mut mount);
    let log = place.path("log");
    run(mount.env("RUST_LOG", "debug,fuser=off").arg("--log-file").arg(&log).arg(&source).arg(&point)).good();
    let server = place.server();
    for _ in 0..3 {
        for i in 0..5 {
            for path in [format!("raw/t{i}.f16"), format!("as/raw-f32/t{i}.f32")] {
                let expected = fs::metadata(point.join(&path)).unwrap().size();
                let done = run(group.command("dd").arg(format!("if={}", point.join(&path).display())).args(["of=/dev/null", "bs=1M", "status=noxfer"]));
                assert_eq!(done.code, Some(0), "{path}: {}", done.err);
                let whole = format!("{}+{} records in", expected / MIB, u8::from(!expected.is_multiple_of(MIB)));
                assert!(done.err.contains(&whole), "{path}: {}", done.err);
            }
        }
        assert!(is_ramp(&fs::read(point.join("raw/t4.f16")).unwrap(), 4));
    }
    assert_eq!(place.server(), server, "the server has lived through it");
    assert!(text(&log).contains("put into huge pages in") || text(&log).contains("no tensor is put into huge pages"), "{}", text(&log));
    place.unmount(&point);
    eventually("the group is empty", Duration::from_secs(5), || text(group.0.join("cgroup.procs")).is_empty());
}

/// Whatever the user allows, the group decides: past its limit the server would be killed.
#[test]
fn a_budget_that_the_group_does_not_have_is_not_taken() {
    if !fuse_is_here() || !is_root() {
        return;
    }
    let Some(group) = Group::new("budget", 128 * MIB) else { return };
    let place = Place::new();
    let source = place.path("ramps.gguf");
    ramps(&source, &[16 * MIB; 12], F32);
    let point = place.path("mnt");
    let mut mount = group.command(crate::common::PROGRAM);
    place.mark(&mut mount);
    run(mount.args(["--memory-budget", "1G"]).arg(&source).arg(&point)).good();
    let server = place.server();
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for i in 0..12 {
                let path = point.join(format!("raw/t{i}.f32"));
                scope.spawn(move || assert!(is_ramp(&read(&path), i), "tensor {i}"));
            }
        });
    }
    assert_eq!(place.server(), server, "the server has lived through it");
    place.unmount(&point);
    eventually("the group is empty", Duration::from_secs(5), || text(group.0.join("cgroup.procs")).is_empty());
}

#[test]
fn a_limit_for_file_sizes_costs_speed_only() {
    if !fuse_is_here() || !has_tool("bash") {
        return;
    }
    let place = Place::new();
    let source = place.path("ramps.gguf");
    ramps(&source, &[9 * MIB], F16);
    let point = place.path("mnt");
    let mut mount = Command::new("bash");
    place.mark(&mut mount);
    run(mount.args(["-c", "ulimit -f 4096; exec \"$@\"", "bash", crate::common::PROGRAM]).arg(&source).arg(&point)).good();
    for _ in 0..3 {
        assert!(is_ramp(&read(&point.join("raw/t0.f16")), 0));
    }
    place.unmount(&point);
}
