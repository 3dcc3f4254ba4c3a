//! Writes the man pages and the shell completions of the program, made of the definition of its options: `cargo run --example man [FOLDER]`.

use std::path::PathBuf;

use clap_complete::Shell;

// The definition is no part of the library.
#[path = "../src/cli/options.rs"]
#[allow(dead_code, reason = "only the definition is used")]
mod options;

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("target/assets"), PathBuf::from);
    let (pages, completions) = (folder.join("man1"), folder.join("completions"));
    std::fs::create_dir_all(&pages)?;
    std::fs::create_dir_all(&completions)?;
    clap_mangen::generate_to(options::definition().disable_help_subcommand(true), &pages)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut options::definition(), "mount-tensors", &completions)?;
    }
    std::io::Write::write_all(&mut std::io::stdout(), format!("{}\n{}\n", pages.display(), completions.display()).as_bytes())
}
