//! Containers that are large or hold very much: memory stays small, and a listing decodes nothing.

use std::fs::{self, File};
use std::io::Read;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::gguf::{F32, Q4_K, Tensor};
use crate::common::{Mounted, Place, fuse_is_here, gguf, has_tool, run, status_bytes, walk};

const MIB: u64 = 1 << 20;

#[test]
fn the_start_of_every_file_of_a_3_gb_model_costs_neither_time_nor_memory() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    let source = place.path("sparse.gguf");
    let elements = 1u64 << 29;
    let tensors = [
        Tensor { name: "large.q4".into(), dims: vec![4096, elements / 4096], kind: Q4_K, bytes: elements / 256 * 144 },
        Tensor { name: "large.f32".into(), dims: vec![4096, elements / 4096], kind: F32, bytes: elements * 4 },
        Tensor { name: "row.q4".into(), dims: vec![elements], kind: Q4_K, bytes: elements / 256 * 144 },
    ];
    gguf::sparse(&source, &tensors);
    let started = Instant::now();
    let mounted = Mounted::at(place, &source, &[]);
    let server = mounted.place.server();
    let mut files = 0;
    for path in walk(&mounted.point).iter().map(|p| mounted.path(p)).filter(|p| p.is_file()) {
        // The hashes of source/ are the one thing that has to read all of it.
        if path.ends_with("SHA256SUMS") {
            continue;
        }
        let mut start = Vec::new();
        File::open(&path).unwrap().take(100).read_to_end(&mut start).unwrap();
        assert!(!start.is_empty(), "{}", path.display());
        files += 1;
    }
    assert!(files > 20);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert!(status_bytes(server, "RssAnon") < 64 * MIB, "{} MiB", status_bytes(server, "RssAnon") / MIB);
    // Nor does the middle, or the end.
    use std::os::unix::fs::FileExt;
    let decoded = File::open(mounted.path("as/f16/large.q4.npy")).unwrap();
    let size = decoded.metadata().unwrap().len();
    assert_eq!(size, elements * 2 + 128);
    let mut bytes = [1u8; 100_000];
    decoded.read_exact_at(&mut bytes, size / 2 + 1).unwrap();
    decoded.read_exact_at(&mut bytes, size - 100_000).unwrap();
    assert!(bytes.iter().all(|b| *b == 0));
    // And reading much of it keeps nothing.
    std::thread::scope(|scope| {
        for reader in 0..4u64 {
            let decoded = &decoded;
            scope.spawn(move || {
                let mut bytes = vec![0u8; MIB as usize];
                (0..24).for_each(|step| decoded.read_exact_at(&mut bytes, (reader * 100 + step) * MIB).unwrap());
            });
        }
    });
    assert!(status_bytes(server, "RssAnon") < 64 * MIB);
    drop(decoded);
    mounted.unmount();
}

#[test]
fn a_hundred_thousand_tensors_mount_list_and_render_in_little_memory() {
    if !fuse_is_here() {
        return;
    }
    const COUNT: u32 = 100_000;
    let place = Place::new();
    let source = place.path("many.gguf");
    gguf::many(&source, COUNT);
    let started = Instant::now();
    let mounted = Mounted::at(place, &source, &[]);
    assert_eq!(fs::read_dir(mounted.path("raw")).unwrap().count(), COUNT as usize);
    assert!(started.elapsed() < Duration::from_secs(5), "mounted and listed after {:?}", started.elapsed());
    let server = mounted.place.server();
    if has_tool("ls") {
        let listed = run(Command::new("ls").arg("-lR").arg(mounted.path("raw"))).good();
        assert!(listed.lines().count() >= COUNT as usize);
    }
    let list: serde_json::Value = serde_json::from_slice(&fs::read(mounted.path("tensors.json")).unwrap()).unwrap();
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), COUNT as usize);
    let one = &list[77_777];
    let path = one["files"]["npy"].as_str().unwrap();
    assert_eq!(fs::read(mounted.path(path)).unwrap()[128..], gguf::many_values(77_777));
    assert!(status_bytes(server, "RssAnon") < 100 * MIB, "{} MiB", status_bytes(server, "RssAnon") / MIB);
    mounted.unmount();
}
