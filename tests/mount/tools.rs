//! Stock tools do what they do on any file system.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Mounted, contents, fixture, fuse_is_here, has_tool, run, walk};

fn tool(name: &str, arguments: &[&str], path: &Path) -> String {
    run(Command::new(name).env("LC_ALL", "C").args(arguments).arg(path)).good()
}

#[test]
fn listing_and_measuring_tools() {
    if !fuse_is_here() {
        return;
    }
    for source in ["gguf/good/tiny.gguf", "safetensors/good/model", "safetensors/good/odd_names.safetensors"] {
        let mounted = Mounted::new(fixture(source));
        let paths = walk(&mounted.point);
        let (folders, files): (Vec<_>, Vec<_>) = paths.iter().map(|p| mounted.path(p)).partition(|p| p.is_dir());
        if has_tool("ls") {
            let listed = tool("ls", &["-lRb"], &mounted.point);
            assert_eq!(listed.lines().filter(|line| line.starts_with("-r--r--r--")).count(), files.len());
            assert!(!listed.contains('?'), "{listed}");
        }
        if has_tool("find") {
            let count = |kind: &str| run(Command::new("find").arg(&mounted.point).args(["-type", kind, "-printf", "x"])).good().len();
            assert_eq!((count("f"), count("d"), count("l")), (files.len(), folders.len() + 1, 0));
            // find trusts link counts of folders where it can.
            assert_eq!(run(Command::new("find").arg(&mounted.point).args(["-mindepth", "1", "-printf", "x"])).good().len(), paths.len());
        }
        if has_tool("du") {
            let first = |text: String| text.split_whitespace().next().unwrap().parse::<u64>().unwrap();
            for file in &files {
                let (apparent, used) = (first(tool("du", &["-b"], file)), first(tool("du", &["-B512"], file)));
                assert_eq!(used, apparent.div_ceil(512), "{}", file.display());
            }
            let (apparent, used) = (first(tool("du", &["-sb"], &mounted.point)), first(tool("du", &["-s", "-B1"], &mounted.point)));
            assert!(used >= apparent && used - apparent <= 512 * paths.len() as u64, "du -sb {apparent}, du -s {used}");
        }
        if has_tool("df") {
            let df = tool("df", &["-B1", "--output=size,avail,itotal,fstype,target"], &mounted.point);
            let fields: Vec<&str> = df.lines().nth(1).unwrap().split_whitespace().collect();
            assert!(fields[0].parse::<u64>().unwrap() > 0);
            assert_eq!((fields[1], fields[3]), ("0", "fuse.mount-tensors"));
            assert_eq!(fields[4], mounted.point.to_str().unwrap());
            tool("df", &["-i"], &mounted.point);
        }
        mounted.unmount();
    }
}

#[test]
fn copying_tools() {
    if !fuse_is_here() {
        return;
    }
    for source in ["gguf/good/tiny.gguf", "safetensors/good/odd_names.safetensors"] {
        let mounted = Mounted::new(fixture(source));
        let place = &mounted.place;
        let expected = contents(&mounted.point);
        let same = |what: &str, copy: &Path| assert!(contents(copy) == expected, "{what} has copied something else");
        if has_tool("cp") {
            run(Command::new("cp").arg("-r").arg(&mounted.point).arg(place.path("cp"))).good();
            run(Command::new("chmod").args(["-R", "u+w"]).arg(place.path("cp"))).good();
            same("cp -r", &place.path("cp"));
            run(Command::new("cp").arg("-a").arg(&mounted.point).arg(place.path("cp-a"))).good();
            same("cp -a", &place.path("cp-a"));
            run(Command::new("chmod").args(["-R", "u+w"]).arg(place.path("cp-a"))).good();
        }
        if has_tool("tar") {
            fs::create_dir(place.path("untar")).unwrap();
            let done = run(Command::new("tar").arg("-cf").arg(place.path("tar")).arg("-C").arg(&mounted.point).arg("."));
            assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
            run(Command::new("tar").arg("-xf").arg(place.path("tar")).arg("--no-same-permissions").arg("-C").arg(place.path("untar"))).good();
            same("tar", &place.path("untar"));
            run(Command::new("chmod").args(["-R", "u+w"]).arg(place.path("untar"))).good();
        }
        if has_tool("rsync") {
            let sync = || {
                let mut rsync = Command::new("rsync");
                rsync.args(["-aH", "--chmod=u+w", "--itemize-changes"]).arg(mounted.path("")).arg(place.path("rsync"));
                run(&mut rsync).good()
            };
            assert!(!sync().is_empty());
            same("rsync", &place.path("rsync"));
            assert_eq!(sync(), "", "a second rsync moves nothing");
        }
        if has_tool("sha256sum") {
            run(Command::new("sha256sum").args(["-c", "--strict", "SHA256SUMS"]).current_dir(mounted.path("source"))).good();
        }
        mounted.unmount();
    }
}

#[test]
fn reading_tools() {
    if !fuse_is_here() || !has_tool("dd") {
        return;
    }
    let mounted = Mounted::new(fixture("gguf/good/tiny.gguf"));
    for path in ["source/tiny.gguf", "as/f32/output.weight.npy", "tensors.json"] {
        let file = mounted.path(path);
        let expected = fs::read(&file).unwrap();
        for options in [&["bs=7"][..], &["bs=1M"], &["bs=4096", "iflag=direct"], &["bs=333", "skip=11"]] {
            let done = run(Command::new("dd").arg(format!("if={}", file.display())).args(options).arg("status=none"));
            assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
            let skipped = if options.len() == 2 && options[1].starts_with("skip") { 333 * 11 } else { 0 };
            crate::common::assert_same(&format!("{path} {options:?}"), &done.out, &expected[skipped..]);
        }
        if has_tool("head") && has_tool("tail") {
            let file = file.to_str().unwrap();
            assert_eq!(run(Command::new("head").args(["-c", "100", file])).out, expected[..100]);
            assert_eq!(run(Command::new("tail").args(["-c", "100", file])).out, expected[expected.len() - 100..]);
        }
    }
    if has_tool("sha256sum") {
        let model = Mounted::new(fixture("safetensors/good/model"));
        let sums = run(Command::new("sha256sum").args(["-c", "--strict", "SHA256SUMS"]).current_dir(model.path("source"))).good();
        assert!(sums.lines().count() >= 3 && sums.lines().all(|line| line.ends_with(": OK")), "{sums}");
    }
    mounted.unmount();
}
