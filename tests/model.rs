//! Model folders: which container is the top, what becomes of the others and of the small files, and which paths are never followed.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "in a test, a panic is the report of a failure")]

#[path = "common/support.rs"]
mod support;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use mount_tensors::formats::{self, source_name};
use mount_tensors::fs::{Errno, Fs};
use support::{json, list, npy, open, read, safetensors, stat};

/// A folder in a temporary place, filled with files.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(files: &[(&str, &[u8])]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        files.iter().for_each(|(name, bytes)| folder.write(name, bytes));
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn open(&self) -> Fs {
        open(self.path()).unwrap_or_else(|e| panic!("{e}"))
    }
}

/// A safetensors file with one tensor of one byte.
fn one(name: &str, byte: u8) -> Vec<u8> {
    safetensors(&format!("{{\"{name}\":{{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}}}"), &[byte])
}

fn index(shards: &[(&str, &str)]) -> Vec<u8> {
    let map: serde_json::Map<String, serde_json::Value> = shards.iter().map(|(tensor, shard)| ((*tensor).to_string(), (*shard).into())).collect();
    serde_json::to_vec(&serde_json::json!({"metadata": {"total_size": 2}, "weight_map": map})).unwrap()
}

fn names(fs: &Fs, path: &str) -> Vec<String> {
    let folder = fs.resolve(path.as_bytes()).unwrap_or_else(|e| panic!("{path}: {e:?}"));
    list(fs, folder, 0).into_iter().map(|line| String::from_utf8(line.name).unwrap()).collect()
}

fn issues(fs: &Fs) -> Vec<String> {
    json(fs, "issues.json").as_array().unwrap().iter().map(|i| format!("{}: {}: {}", i["where"], i["what"], i["done"])).collect()
}

#[test]
fn an_index_is_the_top_and_its_shards_are_no_parts() {
    let folder = Folder::new(&[
        ("model-00001-of-00002.safetensors", &one("a", 1)),
        ("model-00002-of-00002.safetensors", &one("b", 2)),
        ("model.safetensors.index.json", &index(&[("a", "model-00001-of-00002.safetensors"), ("b", "model-00002-of-00002.safetensors")])),
        ("config.json", b"{\"architectures\": []}\n"),
        ("generation_config.json", b"{}"),
        ("README.md", b"# read me\n"),
        ("LICENSE", b"do\n"),
        ("tokenizer.json", b"{\"model\": {}}"),
        ("tokenizer_config.json", b"{}"),
        ("vocab.txt", b"[PAD]\n"),
        ("special_tokens_map.json", b"{}"),
        ("chat_template.jinja", b"{{ x }}\r\n"),
        ("consolidated.safetensors", &one("whole", 3)),
        ("original/consolidated.safetensors", &one("older", 4)),
        ("onnx/extra/weights.npy", &npy("{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }\n", &[5])),
    ]);
    let fs = folder.open();
    assert_eq!(issues(&fs), [""; 0]);
    assert_eq!(names(&fs, "raw"), ["a.u8", "b.u8"]);
    assert_eq!(read(&fs, "raw/b.u8").unwrap(), [2]);
    assert_eq!(names(&fs, "config"), ["LICENSE", "README.md", "config.json", "generation_config.json", "model.safetensors.index.json"]);
    assert_eq!(names(&fs, "tokenizer"), ["chat_template.jinja", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]);
    assert_eq!(read(&fs, "tokenizer/chat_template.jinja").unwrap(), b"{{ x }}\r\n");
    assert_eq!(read(&fs, "config/README.md").unwrap(), b"# read me\n");
    assert_eq!(names(&fs, "parts"), ["consolidated", "onnx", "original"]);
    assert_eq!(read(&fs, "parts/consolidated/raw/whole.u8").unwrap(), [3]);
    assert_eq!(read(&fs, "parts/original/consolidated/raw/older.u8").unwrap(), [4]);
    assert_eq!(read(&fs, "parts/onnx/extra/weights/raw/weights.u8").unwrap(), [5]);
    assert_eq!(stat(&fs, "parts/consolidated/config"), Err(Errno::NotFound), "side files belong to the top");
    assert_eq!(names(&fs, "source"), ["SHA256SUMS", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]);
}

#[test]
fn any_shard_and_the_index_open_the_whole_set() {
    let shards = ["m-00001-of-00003.safetensors", "m-00002-of-00003.safetensors", "m-00003-of-00003.safetensors"];
    let folder = Folder::new(&[(shards[0], &one("a", 1)), (shards[1], &one("b", 2)), (shards[2], &one("c", 3))]);
    let tensors = |name: &str| names(&open(folder.path().join(name)).unwrap(), "raw");
    for shard in shards {
        assert_eq!(tensors(shard), ["a.u8", "b.u8", "c.u8"], "without an index the names tell");
    }
    assert_eq!(names(&folder.open(), "raw"), ["a.u8", "b.u8", "c.u8"]);
    folder.write("any name.index.json", &index(&[("c", shards[2]), ("b", shards[1]), ("a", shards[0])]));
    for name in shards.iter().chain(&["any name.index.json"]) {
        assert_eq!(tensors(name), ["a.u8", "b.u8", "c.u8"]);
    }
    fs::remove_file(folder.path().join(shards[1])).unwrap();
    let fs = open(folder.path().join(shards[0])).unwrap();
    assert_eq!(names(&fs, "raw"), ["a.u8", "c.u8"]);
    assert!(issues(&fs).iter().any(|issue| issue.contains(shards[1])), "{:?}", issues(&fs));
}

#[test]
fn a_folder_without_a_top_shows_each_container() {
    let folder = Folder::new(&[
        ("vae/diffusion_pytorch_model.safetensors", &one("v", 1)),
        ("unet/diffusion_pytorch_model.safetensors", &one("u", 2)),
        ("model_index.json", b"{}"),
    ]);
    let fs = folder.open();
    assert_eq!(names(&fs, ""), ["unet", "vae"]);
    assert_eq!(read(&fs, "vae/diffusion_pytorch_model/raw/v.u8").unwrap(), [1]);
    // Two files at the top, neither with a usual name.
    let folder = Folder::new(&[("x.safetensors", &one("x", 1)), ("y.safetensors", &one("y", 2))]);
    assert_eq!(names(&folder.open(), ""), ["x", "y"]);
    // Two of one name keep their extensions.
    folder.write("y.npy", &npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n", &[0; 4]));
    assert_eq!(names(&folder.open(), ""), ["x", "y.npy", "y.safetensors"]);
    fs::remove_file(folder.path().join("y.npy")).unwrap();
    // One of them has it.
    folder.write("model.safetensors", &one("m", 3));
    let fs = folder.open();
    assert_eq!(read(&fs, "raw/m.u8").unwrap(), [3]);
    assert_eq!(names(&fs, "parts"), ["x", "y"]);
}

#[test]
fn a_cache_is_its_snapshot_through_links() {
    let folder =
        Folder::new(&[("models--acme--tiny/blobs/aaa", &one("t", 7)), ("models--acme--tiny/blobs/bbb", b"{}"), ("models--acme--tiny/refs/main", b"rev1")]);
    let cache = folder.path().join("models--acme--tiny");
    let snapshot = cache.join("snapshots/rev1");
    fs::create_dir_all(&snapshot).unwrap();
    symlink("../../blobs/aaa", snapshot.join("model.safetensors")).unwrap();
    symlink("../../blobs/bbb", snapshot.join("config.json")).unwrap();
    for path in [cache.clone(), snapshot.clone(), snapshot.join("model.safetensors")] {
        let fs = open(&path).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(read(&fs, "raw/t.u8").unwrap(), [7]);
        assert_eq!(json(&fs, "info.json")["files"][0]["huggingface_revision"], "rev1");
        assert_eq!(names(&fs, "source"), ["SHA256SUMS", "model.safetensors"], "the name in the snapshot, not the blob's");
        assert_eq!(source_name(&path), b"acme--tiny");
    }
    assert_eq!(read(&open(&cache).unwrap(), "config/config.json").unwrap(), b"{}");
    // A second snapshot: refs/main decides; without it, nobody can.
    fs::create_dir_all(cache.join("snapshots/rev2")).unwrap();
    assert!(open(&cache).is_ok());
    fs::remove_file(cache.join("refs/main")).unwrap();
    assert!(open(&cache).unwrap_err_text().contains("refs/main"));
}

/// The text of the error, where success has no `Debug`.
trait ErrorText {
    fn unwrap_err_text(self) -> String;
}

impl<T> ErrorText for mount_tensors::error::Result<T> {
    fn unwrap_err_text(self) -> String {
        match self {
            Ok(_) => panic!("should be refused"),
            Err(e) => e.to_string(),
        }
    }
}

#[test]
fn the_cache_among_the_fixtures() {
    let cache = Path::new("fixtures/safetensors/hub/models--acme--tiny");
    let fs = open(cache).unwrap();
    assert_eq!(issues(&fs), [""; 0]);
    assert!(names(&fs, "config").contains(&"config.json".to_string()));
    assert!(names(&fs, "tokenizer").contains(&"tokenizer.json".to_string()));
}

#[test]
fn names_of_sources_among_several() {
    let name = |path: &str| String::from_utf8(source_name(Path::new(path))).unwrap();
    assert_eq!(name("/models/tiny.gguf"), "tiny");
    assert_eq!(name("/models/tiny.q4_k_m.gguf"), "tiny.q4_k_m");
    assert_eq!(name("/models/big-00002-of-00003.gguf"), "big");
    assert_eq!(name("/models/big-00002-of-00003.safetensors"), "big");
    assert_eq!(name("/models/model.safetensors.index.json"), "model");
    assert_eq!(name("/hub/models--org--name/snapshots/0123abcd"), "org--name");
    assert_eq!(name("/hub/models--org--name/snapshots/0123abcd/model.safetensors"), "org--name");
    assert_eq!(name("/models/.hidden"), ".hidden");
    assert_eq!(name("/models/no_extension"), "no_extension");
    let folder = Folder::new(&[("v1.5/model.safetensors", &one("a", 1))]);
    assert_eq!(source_name(&folder.path().join("v1.5")), b"v1.5", "a folder's dot belongs to its name");
}

#[test]
fn links_in_circles_and_into_nothing_are_passed_over() {
    let folder = Folder::new(&[("model.safetensors", &one("a", 1)), ("sub/other.safetensors", &one("b", 2))]);
    let path = folder.path();
    symlink(path, path.join("sub/up")).unwrap();
    symlink("circle", path.join("circle")).unwrap();
    symlink("circle_b", path.join("circle_a")).unwrap();
    symlink("circle_a", path.join("circle_b")).unwrap();
    symlink("/nowhere/at/all", path.join("broken.safetensors")).unwrap();
    symlink("/", path.join("root")).unwrap();
    let fs = folder.open();
    assert_eq!(read(&fs, "raw/a.u8").unwrap(), [1]);
    assert_eq!(names(&fs, "parts"), ["sub"]);
    assert_eq!(names(&fs, "parts/sub"), ["other"]);
}

/// The same file under two names is one container.
#[test]
fn two_links_to_one_file_count_once() {
    let folder = Folder::new(&[("model.safetensors", &one("a", 1))]);
    symlink("model.safetensors", folder.path().join("zzz.safetensors")).unwrap();
    fs::hard_link(folder.path().join("model.safetensors"), folder.path().join("yyy.safetensors")).unwrap();
    let fs = folder.open();
    assert_eq!(read(&fs, "raw/a.u8").unwrap(), [1]);
    assert_eq!(stat(&fs, "parts"), Err(Errno::NotFound));
}

#[test]
fn hidden_files_pipes_and_sockets_are_left_alone() {
    let folder = Folder::new(&[
        ("model.safetensors", &one("a", 1)),
        (".git/objects/pack.safetensors", &one("b", 2)),
        (".cache.safetensors", &one("c", 3)),
        (".gitattributes", b"x"),
    ]);
    let pipe = folder.path().join("pipe.safetensors");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket.gguf")).unwrap();
    let fs = folder.open();
    assert_eq!(names(&fs, "raw"), ["a.u8"]);
    assert_eq!((stat(&fs, "parts"), stat(&fs, "config")), (Err(Errno::NotFound), Err(Errno::NotFound)));
    let text = open(&pipe).unwrap_err_text();
    assert!(text.contains("regular file"), "{text}");
}

#[test]
fn what_cannot_be_read_costs_only_itself() {
    let folder = Folder::new(&[("model.safetensors", &one("a", 1)), ("secret.safetensors", &one("b", 2)), ("closed/x.safetensors", &one("c", 3))]);
    let (file, closed) = (folder.path().join("secret.safetensors"), folder.path().join("closed"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(&file).is_ok() {
        writeln!(std::io::stderr(), "SKIPPED: this user may read everything, so nothing can be made unreadable").unwrap();
    } else {
        let fs = folder.open();
        assert_eq!(names(&fs, "raw"), ["a.u8"]);
        let issues = issues(&fs);
        assert!(issues.iter().any(|i| i.contains("secret.safetensors")) && issues.iter().any(|i| i.contains("closed")), "{issues:?}");
    }
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn containers_that_are_refused_are_issues_in_a_stable_order() {
    let bad = safetensors("{\"a\": [", &[]);
    let files: Vec<String> = (0..12).map(|n| format!("part{}/broken.safetensors", (n * 7) % 12)).collect();
    let folder = Folder::new(&[("model.safetensors", &one("a", 1))]);
    files.iter().for_each(|name| folder.write(name, &bad));
    let fs = folder.open();
    let found: Vec<String> = json(&fs, "issues.json").as_array().unwrap().iter().map(|i| i["where"].as_str().unwrap().to_string()).collect();
    let mut sorted = found.clone();
    sorted.sort();
    assert_eq!(found.len(), 12, "{found:?}");
    assert_eq!(found, sorted);
}

/// A folder without a top has nowhere of its own to say what was left out: the first of its containers says it.
#[test]
fn what_is_refused_beside_containers_without_a_top_is_an_issue_too() {
    let folder = Folder::new(&[("b.safetensors", &one("b", 1)), ("c.safetensors", &one("c", 1)), ("broken.safetensors", &safetensors("{\"a\": [", &[]))]);
    let fs = folder.open();
    assert_eq!(names(&fs, ""), ["b", "c"]);
    let issues = json(&fs, "b/issues.json");
    assert!(issues[0]["where"].as_str().unwrap().contains("broken.safetensors"), "{issues}");
}

#[test]
fn folders_without_a_container_are_refused() {
    for (files, says) in [
        (vec![], "holds no tensor container"),
        (vec![("readme.txt", b"hello".to_vec())], "holds no tensor container"),
        (vec![("model.safetensors", safetensors("{\"a\": [", &[]))], "model.safetensors"),
    ] {
        let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes): &(&str, Vec<u8>)| (*name, bytes.as_slice())).collect();
        let text = open(Folder::new(&files).path()).unwrap_err_text();
        assert!(text.contains(says), "{text}");
    }
    let text = formats::open(&PathBuf::from("/nowhere/at/all")).unwrap_err_text();
    assert_eq!(text, "/nowhere/at/all: cannot open: No such file or directory");
}

#[test]
fn a_split_gguf_counts_once_in_a_folder() {
    let fs = open("fixtures/gguf/good/split").unwrap();
    assert_eq!(stat(&fs, "parts"), Err(Errno::NotFound));
    assert_eq!(json(&fs, "info.json")["details"]["shards"], 3);
    for shard in fs::read_dir("fixtures/gguf/good/split").unwrap() {
        let alone = open(shard.unwrap().path()).unwrap();
        assert_eq!(names(&alone, "raw"), names(&fs, "raw"));
    }
}
