//! The mounted tree is the one that `ls`, `cat` and `export` show, whatever the source.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Mounted, Place, assert_same, contents, fixture, fuse_is_here, run, text, walk};

const GOOD: [&str; 20] = [
    "gguf/good/types.gguf",
    "gguf/good/odd_names.gguf",
    "gguf/good/names_not_utf8.gguf",
    "gguf/good/every_kv_type.gguf",
    "gguf/good/big_endian.gguf",
    "gguf/good/split/split-00002-of-00003.gguf",
    "gguf/good/vocab_only.gguf",
    "safetensors/good/model",
    "safetensors/good/dtypes.safetensors",
    "safetensors/good/odd_names.safetensors",
    "safetensors/good/parts",
    "safetensors/good/pipeline",
    "safetensors/hub/models--acme--tiny",
    "npy/good/f64.npy",
    "npy/good/big_f32.npy",
    "npy/good/fortran_2d.npy",
    "npy/good/struct_nested.npy",
    "npz/good/forms_deflated.npz",
    "npz/good/mixed_methods.npz",
    "npz/good/names.npz",
];

/// Compares a mount with what `export` copies out without one.
fn same_as_export(source: &Path) {
    let mounted = Mounted::new(source);
    let top: Vec<_> = fs::read_dir(&mounted.point).unwrap().map(|e| e.unwrap().file_name()).collect();
    let copy = mounted.place.path("copy");
    fs::create_dir(&copy).unwrap();
    run(mounted.place.program().arg("export").arg(source).args(&top).arg(&copy)).good();
    let (seen, copied) = (contents(&mounted.point), contents(&copy));
    let paths = |tree: &std::collections::BTreeMap<PathBuf, Vec<u8>>| tree.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(paths(&seen), paths(&copied), "{}", source.display());
    for (path, bytes) in &seen {
        assert_same(&format!("{}: {}", source.display(), path.display()), bytes, &copied[path]);
        let modified = |root: &Path| fs::metadata(root.join(path)).unwrap().modified().unwrap();
        assert_eq!(modified(&mounted.point), modified(&copy), "{}", path.display());
    }
    mounted.unmount();
}

#[test]
fn the_mount_holds_what_export_copies() {
    if !fuse_is_here() {
        return;
    }
    for source in GOOD {
        same_as_export(&fixture(source));
    }
}

#[test]
fn degraded_containers_mount_and_say_what_is_wrong() {
    if !fuse_is_here() {
        return;
    }
    for source in [
        "gguf/degraded/unknown_type.gguf",
        "gguf/degraded/split_missing/split-00001-of-00003.gguf",
        "safetensors/degraded/index_missing_shard",
        "npz/degraded/not_npy.npz",
    ] {
        same_as_export(&fixture(source));
        let place = Place::new();
        let point = place.path("mnt");
        let done = run(place.program().arg(fixture(source)).arg(&point));
        assert!(done.err.starts_with("mount-tensors: warn: "), "{}", done.err);
        done.good();
        assert_ne!(text(point.join("issues.json")).trim(), "[]");
        let strict = run(place.program().arg("--strict").arg(fixture(source)).arg(place.path("strict")));
        assert!(strict.refused().contains("--strict"));
        assert!(!place.path("strict").exists());
    }
    let strict = Mounted::with(fixture("gguf/good/tiny.gguf"), &["--strict"]);
    assert_eq!(text(strict.path("issues.json")).trim(), "[]");
}

#[test]
fn every_file_and_folder_is_as_cat_and_ls_say() {
    if !fuse_is_here() {
        return;
    }
    let source = fixture("gguf/good/tiny.gguf");
    let mounted = Mounted::new(&source);
    let mut folders = vec![PathBuf::new()];
    for path in walk(&mounted.point) {
        if mounted.path(&path).is_dir() {
            folders.push(path);
            continue;
        }
        let cat = run(mounted.place.program().arg("cat").arg(&source).arg(&path));
        assert_eq!((cat.code, cat.err.as_str()), (Some(0), ""));
        assert_same(&path.display().to_string(), &cat.out, &fs::read(mounted.path(&path)).unwrap());
    }
    for folder in folders {
        let listed = run(mounted.place.program().args(["ls", "-l"]).arg(&source).arg(&folder)).good();
        let mut expected: Vec<String> = fs::read_dir(mounted.path(&folder))
            .unwrap()
            .map(|entry| {
                use std::os::unix::fs::MetadataExt;
                let entry = entry.unwrap();
                let (name, meta) = (entry.file_name().into_string().unwrap(), entry.metadata().unwrap());
                if meta.is_dir() { format!("dr-xr-xr-x {} 0 {name}/", meta.nlink()) } else { format!("-r--r--r-- {} {} {name}", meta.nlink(), meta.len()) }
            })
            .collect();
        expected.sort_by_key(|line| line.rsplit(' ').next().unwrap().trim_end_matches('/').to_string());
        let found: Vec<String> = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(found, expected, "{}", folder.display());
    }
    mounted.unmount();
}

#[test]
fn arrays_of_numpy_are_served_as_they_are() {
    if !fuse_is_here() {
        return;
    }
    for name in ["f64", "big_i16", "fortran_2d", "c128", "bool"] {
        let source = fixture(&format!("npy/good/{name}.npy"));
        let mounted = Mounted::new(&source);
        assert_same(name, &fs::read(mounted.path(format!("npy/{name}.npy"))).unwrap(), &fs::read(&source).unwrap());
        mounted.unmount();
    }
    // However a member is stored, its bytes are those of the archive that stores it plainly.
    let stored = Mounted::new(fixture("npz/good/stored.npz"));
    let expected = contents(&stored.path("npy"));
    assert!(!expected.is_empty());
    for name in ["deflated", "bzip2", "lzma"] {
        let mounted = Mounted::new(fixture(&format!("npz/good/{name}.npz")));
        let found = contents(&mounted.path("npy"));
        assert!(found.keys().eq(expected.keys()), "{name}");
        for (path, bytes) in &found {
            assert_same(&format!("{name}: {}", path.display()), bytes, &expected[path]);
        }
        mounted.unmount();
    }
    stored.unmount();
}

/// The tensors of a mounted tree by name, dtype and shape.
fn tensors(root: &Path) -> BTreeSet<String> {
    let list: serde_json::Value = serde_json::from_str(&text(root.join("tensors.json"))).unwrap();
    let tensors = list.as_array().unwrap().iter().map(|t| format!("{} {} {}", t["name"], t["dtype"], t["shape"]));
    let tensors: BTreeSet<String> = tensors.collect();
    assert!(!tensors.is_empty());
    tensors
}

#[test]
fn a_set_is_the_same_by_whichever_of_its_parts_it_is_named() {
    if !fuse_is_here() {
        return;
    }
    let sets = [
        vec![
            "safetensors/good/model",
            "safetensors/good/model/model.safetensors.index.json",
            "safetensors/good/model/model-00001-of-00003.safetensors",
            "safetensors/good/model/model-00002-of-00003.safetensors",
            "safetensors/good/model/model-00003-of-00003.safetensors",
        ],
        vec![
            "gguf/good/split",
            "gguf/good/split/split-00001-of-00003.gguf",
            "gguf/good/split/split-00002-of-00003.gguf",
            "gguf/good/split/split-00003-of-00003.gguf",
        ],
    ];
    for set in sets {
        let mut first: Option<BTreeSet<String>> = None;
        for part in set {
            let mounted = Mounted::new(fixture(part));
            let found = tensors(&mounted.point);
            assert_eq!(*first.get_or_insert_with(|| found.clone()), found, "{part}");
            mounted.unmount();
        }
    }
}

#[test]
fn several_sources_are_folders_and_the_shards_of_one_set_count_once() {
    if !fuse_is_here() {
        return;
    }
    let place = Place::new();
    let point = place.path("mnt");
    let names = |point: &Path| fs::read_dir(point).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect::<BTreeSet<_>>();
    let mount = |sources: &[std::ffi::OsString]| {
        run(place.program().args(sources).arg(&point)).good();
        let found = names(&point);
        let tops: Vec<_> = found.iter().filter(|name| point.join(name).join("tensors.json").is_file()).cloned().collect();
        let title = place.mounts()[0].source.clone();
        place.unmount(&point);
        (tops, found.contains("tensors.json"), title)
    };
    let snapshot = fs::read_dir(fixture("safetensors/hub/models--acme--tiny/snapshots")).unwrap().next().unwrap().unwrap().path();
    let named = |name: &str, path: &str| -> std::ffi::OsString { [name, "=", fixture(path).to_str().unwrap()].concat().into() };
    let of = |path: &str| fixture(path).into_os_string();

    let (tops, single, title) =
        mount(&[of("gguf/good/tiny.gguf"), of("safetensors/good/model"), snapshot.clone().into_os_string(), named("mine", "gguf/good/lora.gguf")]);
    assert_eq!((tops, single), (["acme--tiny", "mine", "model", "tiny"].map(str::to_string).to_vec(), false));
    assert_eq!(title, "4-sources");
    let (tops, single, _) = mount(&[of("gguf/good/split/split-00003-of-00003.gguf"), of("gguf/good/split/split-00001-of-00003.gguf")]);
    assert_eq!((tops.len(), single), (0, true));
    let (tops, ..) = mount(&[named("only", "gguf/good/tiny.gguf")]);
    assert_eq!(tops, ["only"]);
    let (tops, ..) = mount(&[of("gguf/good/tiny.gguf"), of("safetensors/hub/models--acme--tiny")]);
    assert_eq!(tops, ["acme--tiny", "tiny"]);
    let (tops, ..) = mount(&[of("safetensors/good/library.safetensors"), named("library", "gguf/good/tiny.gguf")]);
    assert_eq!(tops, ["library", "library~2"]);
    place.all_over();

    let cache = Mounted::new(fixture("safetensors/hub/models--acme--tiny"));
    let direct = Mounted::new(&snapshot);
    assert_eq!(tensors(&cache.point), tensors(&direct.point));
    let info: serde_json::Value = serde_json::from_str(&text(direct.path("info.json"))).unwrap();
    assert!(info.to_string().contains(snapshot.file_name().unwrap().to_str().unwrap()), "no revision in {info}");
}
