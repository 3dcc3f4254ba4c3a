//! What every target does with its bytes: opens them as a container of its format, and reads a part of every file of the tree.

use std::path::Path;

use mount_tensors::formats::{FORMATS, open_as};
use mount_tensors::fs::{Fs, Ino, Scratch};
use mount_tensors::source::Source;
use mount_tensors::tree::{Branch, ROOT};
use mount_tensors::view::Views;

/// Most files that are read of one tree: the parser is what is tried, not patience.
const FILES: usize = 400;

/// Opens bytes as the format with this extension. A refusal is a good answer; a panic is what is looked for.
pub fn exercise(extension: &str, bytes: &[u8]) {
    let format = FORMATS.iter().find(|format| format.extensions.contains(&extension)).expect("every target names a format");
    // In a folder that does not exist, so that nothing is looked for beside it.
    let source = Source::from_bytes(Path::new("/nowhere/at/all").join(format!("x.{extension}")), bytes.to_vec());
    let Ok(catalog) = open_as(format, &source) else { return };
    let fs = Fs::new(vec![Branch { name: None, top: Some(catalog), parts: Vec::new() }], Views::ALL);
    let mut scratch = Scratch::default();
    let mut folders = vec![ROOT];
    let mut left = FILES;
    while let Some(folder) = folders.pop() {
        let mut entries: Vec<(Vec<u8>, Ino, bool)> = Vec::new();
        let listed = fs.list(folder, 0, &mut |line| {
            entries.push((line.entry.name.to_vec(), line.entry.ino, line.entry.folder));
            entries.len() < FILES
        });
        listed.expect("a folder can be listed");
        for (name, ino, is_folder) in entries {
            left = left.saturating_sub(1);
            if left == 0 {
                return;
            }
            let found = fs.lookup(folder, &name).expect("what is listed is found");
            assert_eq!((found.ino, found.folder), (ino, is_folder), "{}", String::from_utf8_lossy(&name));
            if is_folder {
                folders.push(ino);
                continue;
            }
            for offset in [0, found.size / 2 | 1, found.size.saturating_sub(100)] {
                let _ = fs.read(ino, offset, 3000, &mut scratch);
            }
        }
    }
}
