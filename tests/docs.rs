//! The documentation is run: every `$ command` in a `console` block gives the output that stands below it, and generated tables are fresh.
//!
//! `UPDATE=1 cargo test --test docs` writes outputs and tables anew. Paths under `/tmp/` in the text are mapped to a folder of the test's own. A line `...`
//! stands for any lines. Commands that need NumPy are told aloud as skipped where `python3` does not have it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, clippy::print_stdout, reason = "tests fail by panicking")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mount_tensors::formats::FORMATS;
use mount_tensors::quant::{CODECS, Kind};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn updating() -> bool {
    std::env::var_os("UPDATE").is_some_and(|v| v == "1")
}

/// The folder that stands for /tmp in one document, and what is mounted there: unmounted at the end, whatever happens.
struct Session {
    tmp: tempfile::TempDir,
    bin: PathBuf,
}

impl Session {
    fn new() -> Self {
        let tmp = tempfile::tempdir().unwrap();
        let bin = tmp.path().join("bin");
        fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_mount-tensors"), bin.join("mount-tensors")).unwrap();
        Self { tmp, bin }
    }

    fn run(&self, command: &str) -> String {
        let real = command.replace("cargo run --release --", "mount-tensors").replace("/tmp/", &format!("{}/", self.tmp.path().display()));
        let path = format!("{}:{}", self.bin.display(), std::env::var("PATH").unwrap());
        let output = Command::new("timeout")
            .args(["60", "bash", "-c", &format!("{real} 2>&1")])
            .current_dir(root())
            .env("PATH", path)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).replace(&format!("{}/", self.tmp.path().display()), "/tmp/")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        for point in mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(|p| Path::new(p).starts_with(self.tmp.path())) {
            let _ = Command::new(env!("CARGO_BIN_EXE_mount-tensors")).args(["-u", point]).status();
        }
    }
}

fn has_numpy() -> bool {
    Command::new("python3").args(["-c", "import numpy"]).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// Whether `found` is what `expected` says, where a line `...` stands for any lines.
fn matches(expected: &[&str], found: &[&str]) -> bool {
    match expected.split_first() {
        None => found.is_empty(),
        Some((&"...", rest)) => (0..=found.len()).any(|skip| matches(rest, &found[skip..])),
        Some((first, rest)) => found.first() == Some(first) && matches(rest, &found[1..]),
    }
}

fn run_document(name: &str) {
    let path = root().join(name);
    let text = fs::read_to_string(&path).unwrap();
    let session = Session::new();
    let numpy = has_numpy();
    let mut fresh = String::new();
    let mut lines = text.lines().peekable();
    let mut inside = false;
    while let Some(line) = lines.next() {
        let _ = writeln!(fresh, "{line}");
        if line.starts_with("```") {
            inside = line == "```console";
            continue;
        }
        let Some(command) = line.strip_prefix("$ ").filter(|_| inside) else { continue };
        let mut expected = Vec::new();
        while let Some(next) = lines.next_if(|l| !l.starts_with("$ ") && !l.starts_with("```")) {
            expected.push(next);
        }
        if command.contains("python3") && !numpy {
            eprintln!("skipped, since python3 has no NumPy here: {name}: {command}");
            expected.iter().for_each(|line| writeln!(fresh, "{line}").unwrap());
            continue;
        }
        let output = session.run(command);
        let found: Vec<&str> = output.lines().collect();
        let same = matches(&expected, &found);
        assert!(same || updating(), "{name}: $ {command}\n--- the text says\n{}\n--- the command gives\n{output}", expected.join("\n"));
        let shown = if same { &expected } else { &found };
        shown.iter().for_each(|line| writeln!(fresh, "{line}").unwrap());
    }
    if updating() && fresh != text {
        fs::write(path, fresh).unwrap();
    }
}

#[test]
fn the_readme_is_true() {
    run_document("README.md");
}

#[test]
fn the_layout_is_true() {
    run_document("docs/LAYOUT.md");
}

/// Replaces (or compares) what stands between a marker and `<!-- end -->`.
fn check_table(document: &str, marker: &str, table: &str) {
    let path = root().join(document);
    let text = fs::read_to_string(&path).unwrap();
    let start = text.find(&format!("<!-- {marker}")).unwrap_or_else(|| panic!("{document} has no marker {marker}"));
    let start = start + text[start..].find('\n').unwrap() + 1;
    let end = start + text[start..].find("<!-- end -->").unwrap();
    if text[start..end] == *table {
        return;
    }
    assert!(updating(), "{document}: the table {marker} is stale, UPDATE=1 cargo test --test docs writes it anew\n{table}");
    fs::write(path, format!("{}{table}{}", &text[..start], &text[end..])).unwrap();
}

#[test]
fn the_tables_are_fresh() {
    let mut formats = String::from("| format | usual names | notes |\n|---|---|---|\n");
    for format in FORMATS {
        let names: Vec<String> = format.extensions.iter().map(|e| format!("`.{e}`")).collect();
        let _ = writeln!(formats, "| {} | {} | {} |", format.name, names.join(" "), format.title);
    }
    check_table("README.md", "formats", &formats);
    let names = |wanted: &dyn Fn(&mount_tensors::quant::Codec) -> bool| {
        CODECS.iter().filter(|c| wanted(c)).map(|c| format!("`{}`", c.name)).collect::<Vec<_>>().join(" ")
    };
    let mut codecs = String::from("| kind | types |\n|---|---|\n");
    let _ = writeln!(codecs, "| ggml blocks | {} |", names(&|c| c.ggml.is_some() && c.elements > 1 && c.name != "q8_1"));
    let _ = writeln!(codecs, "| scalars | {} |", names(&|c| c.elements == 1 && !["f32", "f64"].contains(&c.name)));
    let _ = writeln!(codecs, "| packed | {} |", names(&|c| c.ggml.is_none() && c.elements > 1 && c.kind == Kind::Float));
    let _ = writeln!(codecs, "| packed integers | {} |", names(&|c| c.kind != Kind::Float));
    check_table("README.md", "codecs", &codecs);
}
