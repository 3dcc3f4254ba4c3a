//! Golden files: expected text kept beside the tests, rewritten with `UPDATE=1`.

use std::fs;
use std::path::{Path, PathBuf};

/// Whether the golden files are to be rewritten.
pub(crate) fn updating() -> bool {
    std::env::var_os("UPDATE").is_some_and(|value| value == "1")
}

/// The folder of the golden files.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Compares `text` with the golden file `name`; the answer is what is wrong, with the first line that differs from both sides.
pub(crate) fn compare(name: &str, text: &str) -> Result<(), String> {
    let path = folder().join(name);
    if updating() {
        fs::create_dir_all(path.parent().expect("a golden file is in a folder")).expect("the folder can be made");
        fs::write(&path, text).expect("the golden file can be written");
        return Ok(());
    }
    let Ok(expected) = fs::read_to_string(&path) else {
        return Err(format!("tests/golden/{name} is missing: look at what `UPDATE=1 cargo test --test formats` writes there, then commit it"));
    };
    if expected == text {
        return Ok(());
    }
    let (mut old, mut new) = (expected.lines(), text.lines());
    let mut number = 0;
    loop {
        number += 1;
        match (old.next(), new.next()) {
            (None, None) => return Err(format!("tests/golden/{name}: only line ends differ")),
            (a, b) if a == b => {}
            (a, b) => {
                let side = |line: Option<&str>| line.map_or("(end of the text)".to_string(), |line| line.chars().take(400).collect());
                return Err(format!("tests/golden/{name}:{number}\n  expected: {}\n  found:    {}\n  (UPDATE=1 rewrites it)", side(a), side(b)));
            }
        }
    }
}

/// The golden files below the folder that are none of `wanted`: their fixture has gone. With `UPDATE=1` they are removed.
pub(crate) fn stale(wanted: &[String]) -> Vec<String> {
    let mut stale = Vec::new();
    let mut folders = vec![folder()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).into_iter().flatten() {
            let path = entry.expect("the golden folder can be listed").path();
            let name = path.strip_prefix(folder()).expect("it is below the golden folder").to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if !wanted.contains(&name) {
                if updating() {
                    fs::remove_file(&path).expect("a stale golden file can be removed");
                } else {
                    stale.push(name);
                }
            }
        }
    }
    stale
}
