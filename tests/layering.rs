//! The modules against the picture of their layers (docs/DEVELOPMENT.md): who may use whom, where unsafe code may stand, how long a file may be.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "in a test, a panic is the report of a failure")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The layer of each module, in order: a module uses those that stand before it, so that no two of one layer can use each other.
const LAYERS: &[(&str, u32)] = &[
    ("error", 0),
    ("json", 0),
    ("limits", 0),
    ("quant", 0),
    ("dtype", 0),
    ("sys", 0),
    ("memory", 0),
    // The reader is a window onto a source.
    ("source", 1),
    ("reader", 1),
    ("recipe", 2),
    ("catalog", 2),
    ("view", 2),
    ("tree", 3),
    ("content", 3),
    ("render", 3),
    ("formats", 3),
    ("sources", 4),
    ("fs", 4),
    ("pool", 4),
    ("opens", 5),
    ("fuse", 6),
];

/// Of the tree, what is no node and no inode: the files of one catalogue by name.
const NAMES: &[&str] = &["Set", "Document", "names"];

/// The program's own modules, above the library.
const PROGRAM: &[&str] = &["main", "cli", "commands", "mount", "text"];

/// Files in which `unsafe` may stand.
const UNSAFE: &[&str] = &["src/source.rs", "src/source/member.rs", "src/sys.rs"];
const UNSAFE_BELOW: &str = "src/quant/x86";

/// Files that are tables, which may be long.
const TABLES: &[&str] = &["src/quant/iq_tables.rs"];
const LINES: usize = 800;

fn files() -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![PathBuf::from("src")]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// The module at the top of `src/` that a file belongs to.
fn module(path: &Path) -> String {
    let first = path.strip_prefix("src").unwrap().components().next().unwrap();
    Path::new(first.as_os_str()).file_stem().unwrap().to_str().unwrap().to_string()
}

/// The source without comments, strings and character literals: what is left is code.
fn code(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(hashes) = raw_string(rest).filter(|_| !out.ends_with(|c: char| c.is_alphanumeric() || c == '_')) {
            let end = format!("\"{}", "#".repeat(hashes));
            let start = rest.find('"').unwrap() + 1;
            rest[start..].find(&end).map_or(rest.len(), |at| start + at + end.len())
        } else if c == '"' {
            string_len(rest)
        } else if c == '\'' {
            character_len(rest)
        } else {
            0
        };
        if skip == 0 {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            out.push(' ');
            rest = &rest[skip..];
        }
    }
    out
}

/// The number of `#` of a raw string that starts here.
fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = after.bytes().take_while(|b| *b == b'#').count();
    after[hashes..].starts_with('"').then_some(hashes)
}

fn string_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// The length of a character literal; 0 for a lifetime.
fn character_len(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => text[3..].find('\'').map_or(0, |at| at + 4),
        Some(_) => match chars.next() {
            Some((at, '\'')) => at + 1,
            _ => 0,
        },
        None => 0,
    }
}

/// The paths that code uses below a prefix such as `crate::`, braces written out.
fn paths(code: &str, prefix: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices(prefix) {
        if !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
            expand(&code[at + prefix.len()..], "", &mut found);
        }
    }
    found
}

/// Adds the path that starts here to `found`, or each path of a list in braces; the answer is the rest of the text.
fn expand<'a>(text: &'a str, before: &str, found: &mut BTreeSet<String>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            if let Some(after) = rest.strip_prefix('}') {
                return after;
            }
            if rest.is_empty() {
                return rest;
            }
            rest = expand(rest, before, found);
        }
    }
    let word = |text: &'a str| text.split_at(text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len()));
    let (name, rest) = word(text);
    if name.is_empty() {
        // `*`, or something that cannot be read, which is passed over so that a list always ends.
        found.insert(format!("{before}::*"));
        return text.get(text.chars().next().map_or(0, char::len_utf8)..).unwrap_or("");
    }
    let path = if before.is_empty() { name.to_string() } else { format!("{before}::{name}") };
    if let Some(after) = rest.strip_prefix("::").filter(|after| after.starts_with(|c: char| c.is_alphabetic() || "_{*".contains(c))) {
        return expand(after, &path, found);
    }
    found.insert(path);
    match rest.trim_start().strip_prefix("as ") {
        Some(after) => word(after.trim_start()).1,
        None => rest,
    }
}

/// A module's place in the order.
fn place(module: &str) -> usize {
    LAYERS.iter().position(|(name, _)| *name == module).unwrap_or_else(|| panic!("src/{module}.rs has no layer: add it to LAYERS in tests/layering.rs"))
}

/// Every use of one module of the library by another, as (file, module, path).
fn uses() -> Vec<(PathBuf, String, String)> {
    let mut uses = Vec::new();
    for path in files() {
        let own = module(&path);
        if own == "lib" || PROGRAM.contains(&own.as_str()) {
            continue;
        }
        let code = code(&std::fs::read_to_string(&path).unwrap());
        uses.extend(paths(&code, "crate::").into_iter().map(|used| (path.clone(), own.clone(), used)));
    }
    uses
}

#[test]
fn the_reader_of_paths_reads_paths() {
    let text = "use crate::catalog::{Builder, value::{A, B as C}, self}; // crate::fuse\nlet a = crate::quant::by_name(\"crate::fs\"); 'x'; '\"'; fn f<'a>() -> \
                crate::tree::Ino {}";
    let found: Vec<String> = paths(&code(text), "crate::").into_iter().collect();
    assert_eq!(found, ["catalog::Builder", "catalog::self", "catalog::value::A", "catalog::value::B", "quant::by_name", "tree::Ino"]);
}

#[test]
fn modules_use_those_before_them_only() {
    assert!(LAYERS.is_sorted_by_key(|(_, layer)| *layer));
    let mut wrong = Vec::new();
    let uses = uses();
    assert!(uses.len() > 100, "only {} uses were found", uses.len());
    for (path, own, used) in &uses {
        let target = used.split("::").next().unwrap();
        if target != own && place(target) > place(own) {
            wrong.push(format!("{}: uses crate::{used}, which is above it or after it in its layer", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn contents_and_documents_know_no_nodes() {
    let mut wrong = Vec::new();
    for (path, own, used) in uses() {
        let Some(used) = used.strip_prefix("tree::") else { continue };
        let name = used.split("::").next().unwrap();
        if own == "content" || own == "render" && !NAMES.contains(&name) {
            wrong.push(format!("{}: uses crate::tree::{used}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn parsers_and_the_tree_do_not_know_each_other() {
    let tree = ["view", "tree", "content", "render", "fs", "fuse"];
    let mut wrong = Vec::new();
    for (path, own, used) in uses() {
        let target = used.split("::").next().unwrap();
        let meet = (own == "formats" && tree.contains(&target)) || (tree.contains(&own.as_str()) && target == "formats");
        let fuse = own == "fs" && target == "fuse";
        let system = target == "sys" && !["fuse", "opens", "pool", "sys"].contains(&own.as_str());
        if meet || fuse || system {
            wrong.push(format!("{}: uses crate::{used}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn fuse_is_named_where_it_is_served() {
    for path in files() {
        let code = code(&std::fs::read_to_string(&path).unwrap());
        let fuser = !paths(&code, "fuser::").is_empty() || code.contains("use fuser");
        assert!(!fuser || ["fuse", "mount"].contains(&module(&path).as_str()), "{} names fuser", path.display());
        let clap = !paths(&code, "clap::").is_empty();
        assert!(!clap || PROGRAM.contains(&module(&path).as_str()), "{} names clap", path.display());
    }
}

#[test]
fn unsafe_code_stands_in_few_files() {
    let mut with_it = Vec::new();
    for path in files() {
        let code = code(&std::fs::read_to_string(&path).unwrap());
        let has = code.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == "unsafe");
        let name = path.display().to_string();
        assert!(!has || UNSAFE.contains(&name.as_str()) || name.starts_with(UNSAFE_BELOW), "{name} holds unsafe code");
        if has {
            with_it.push(name);
        }
    }
    assert!(!with_it.is_empty());
}

#[test]
fn files_begin_with_their_purpose_and_have_one_subject() {
    for path in files() {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.display().to_string();
        let first = text.lines().next().unwrap_or_default();
        assert!(first.starts_with("//! ") && first.len() > 10, "{name} does not begin by saying what it is for");
        let lines = text.lines().count();
        assert!(lines <= LINES || TABLES.contains(&name.as_str()), "{name} has {lines} lines: two subjects?");
        assert!(!name.ends_with("/mod.rs"), "{name}: name.rs beside name/ is the habit here");
    }
}
