//! Where may be mounted, and what from: mount points of every kind, and paths with anything in them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::{Mounted, Place, assert_same, fixture, fuse_is_here, has_tool, is_root, os, run, text};

fn tiny() -> std::path::PathBuf {
    fixture("gguf/good/tiny.gguf")
}

#[test]
fn mount_points_that_will_not_do_are_refused_with_their_reason() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    fs::write(place.path("file"), "kept").unwrap();
    symlink("nowhere", place.path("dangling")).unwrap();
    symlink("file", place.path("to-file")).unwrap();
    symlink("loop", place.path("loop")).unwrap();
    fs::create_dir(place.path("full")).unwrap();
    fs::write(place.path("full/file"), "kept").unwrap();
    let cases = [
        ("file", "is a file"),
        ("to-file", "is a file"),
        ("dangling", "link"),
        ("loop", "link"),
        ("full", "--allow-non-empty"),
        ("no/such", "no/such"),
        ("file/below", "file/below"),
    ];
    for (point, reason) in cases {
        for options in [&[][..], &["-f"]] {
            let refused = run(place.program().args(options).arg(tiny()).arg(place.path(point))).refused();
            assert!(refused.contains(point) && refused.contains(reason), "{point}: {refused}");
        }
    }
    assert!(place.mounts().is_empty() && place.servers().is_empty());
    assert_eq!((text(place.path("file")), text(place.path("full/file"))), ("kept".into(), "kept".into()));
    assert!(!place.path("no").exists() && !place.path("nowhere").exists());
}

#[test]
fn mount_points_that_will_do_are_missing_or_empty_or_forced() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.path("empty")).unwrap();
    fs::create_dir(place.path("full")).unwrap();
    fs::write(place.path("full/file"), "kept").unwrap();
    symlink("empty", place.path("link")).unwrap();
    let cases: [(&str, &[&str], bool); 5] =
        [("empty", &[], true), ("missing", &[], false), ("full", &["--allow-non-empty"], true), ("link", &[], true), ("empty/", &[], true)];
    for (point, options, stays) in cases {
        run(place.program().args(options).arg(tiny()).arg(place.path(point))).good();
        assert!(place.path(point).join("info.json").is_file(), "{point}");
        place.unmount(place.path(point));
        place.all_over();
        if stays {
            assert!(place.path(point).is_dir(), "{point}");
        } else {
            crate::common::eventually("the mount point that was made goes", std::time::Duration::from_secs(5), || !place.path(point).exists());
        }
    }
    assert_eq!(text(place.path("full/file")), "kept");
}

#[test]
fn relative_paths_are_those_of_the_start_folder_which_may_go_then() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.path("start")).unwrap();
    place.copy("safetensors/good/model", "start/model");
    run(place.program().current_dir(place.path("start")).args(["./model/model.safetensors.index.json", "../mnt"])).good();
    fs::rename(place.path("start"), place.path("moved")).unwrap();
    fs::remove_dir_all(place.path("moved")).unwrap();
    // The whole tree is still there, whatever was opened how late.
    let direct = Mounted::new(fixture("safetensors/good/model/model.safetensors.index.json"));
    let (found, expected) = (crate::common::contents(&place.path("mnt")), crate::common::contents(&direct.point));
    assert!(expected.len() > 20);
    for (path, bytes) in expected.iter().filter(|(path, _)| !path.ends_with("info.json")) {
        let found = found.get(path).unwrap_or_else(|| panic!("{} is not there", path.display()));
        assert_same(&path.display().to_string(), found, bytes);
    }
    place.unmount(place.path("mnt"));
    place.all_over();
}

#[test]
fn any_byte_may_stand_in_the_paths_of_source_and_mount() {
    if !fuse_is_here() {
        return;
    }
    let names: [&[u8]; 10] = [
        b"a,rw,b\\c",
        b"with blank  and\ttab",
        b"quote'\"`$(x)",
        b"new\nline",
        b"-leading",
        b"--replace",
        b"not utf8 \xff\xfe\x80",
        "ünï ☃".as_bytes(),
        b"percent%2F\\040",
        b"key=value",
    ];
    for name in names {
        let place = Place::new();
        let source = place.path(os(&[name, b".gguf"].concat()));
        fs::copy(tiny(), &source).unwrap();
        let point = place.path(os(&[b"mnt ", name].concat()));
        let shown = String::from_utf8_lossy(name).into_owned();
        run(place.program().arg(&source).arg(&point)).good();
        let line = place.mounts().pop().unwrap_or_else(|| panic!("{shown:?} is not in the mount table"));
        assert_eq!((&line.point, line.kind.as_str()), (&point, "fuse.mount-tensors"), "{shown:?}");
        for unasked in ["rw", "suid", "dev", "allow_other"] {
            assert!(!line.options.contains(unasked), "{shown:?}: {:?}", line.options);
        }
        for wanted in ["ro", "nosuid", "nodev"] {
            assert!(line.options.contains(wanted), "{shown:?}: {:?}", line.options);
        }
        assert!(point.join("raw/output_norm.weight.f32").is_file(), "{shown:?}");
        let whole = fs::read_dir(point.join("source")).unwrap().map(|e| e.unwrap().path()).find(|p| !p.ends_with("SHA256SUMS")).unwrap();
        assert!(fs::read(whole).unwrap() == fs::read(tiny()).unwrap(), "{shown:?}");
        place.unmount(&point);
        place.all_over();
        // The same, relative and behind "--", where a leading dash is no option.
        let mut relative = place.program();
        relative.current_dir(place.root()).arg("--").arg(source.file_name().unwrap()).arg(os(name));
        run(&mut relative).good();
        run(place.program().current_dir(place.root()).args(["-u", "--"]).arg(os(name))).good();
        place.all_over();
    }
}

#[test]
fn a_killed_server_is_healed_under_any_name() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    let point = place.path(os(b"a, b\\c\n\"\xff"));
    run(place.program().arg(tiny()).arg(&point)).good();
    crate::common::posix::kill(place.server(), libc::SIGKILL);
    crate::common::eventually("it is gone", std::time::Duration::from_secs(5), || place.servers().is_empty());
    let healed = run(place.program().arg(tiny()).arg(&point));
    assert_eq!(healed.err.lines().count(), 1, "{}", healed.err);
    healed.good();
    assert_eq!(place.mounts().len(), 1);
}

#[test]
fn source_and_log_may_lie_inside_the_mount_point() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    fs::create_dir(place.path("d")).unwrap();
    let (source, point) = (place.copy("gguf/good/tiny.gguf", "d/m.gguf"), place.path("d"));
    let mut command = place.program();
    command.args(["-v", "--allow-non-empty", "--log-file"]).arg(place.path("d/log")).arg(&source).arg(&point);
    let told = run(&mut command);
    assert_eq!(told.err, "", "with a log file, the log goes there");
    told.good();
    assert!(fs::read(point.join("source/m.gguf")).unwrap() == fs::read(tiny()).unwrap());
    assert!(!source.exists() && !point.join("log").exists());
    place.unmount(&point);
    place.all_over();
    assert!(source.is_file());
    let log = text(point.join("log"));
    assert!(log.contains("mounted, owned by user") && log.contains("unmounted"), "{log}");
}

#[test]
fn sources_on_other_file_systems_give_the_same_bytes() {
    if !fuse_is_here() {
        return;
    }
    // Another mount of this program, which is read with pread.
    let first = Mounted::new(tiny());
    let second = Mounted::new(first.path("source/tiny.gguf"));
    assert!(fs::read(second.path("source/tiny.gguf")).unwrap() == fs::read(tiny()).unwrap());
    for path in ["raw/output_norm.weight.f32", "npy/blk.0.attn_q.weight.npy", "tensors.json", "as/bf16/token_embd.weight.npy"] {
        assert!(fs::read(second.path(path)).unwrap() == fs::read(first.path(path)).unwrap(), "{path}");
    }
    second.unmount();
    first.unmount();
    // Only a tmpfs of its own is sure to be one.
    if is_root() && has_tool("mount") {
        let place = Place::new();
        fs::create_dir(place.path("tmpfs")).unwrap();
        run(std::process::Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(place.path("tmpfs"))).good();
        let source = place.copy("gguf/good/tiny.gguf", Path::new("tmpfs/m.gguf"));
        run(place.program().arg(&source).arg(place.path("mnt"))).good();
        assert!(fs::read(place.path("mnt/source/m.gguf")).unwrap() == fs::read(tiny()).unwrap());
    }
}
