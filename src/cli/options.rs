//! What may be said on the command line: the one definition, of which `--help`, the man pages and the shell completions are made.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use mount_tensors::opens::Setting;
use mount_tensors::pool::Budget;
use mount_tensors::view::Views;

/// Mount tensor containers (GGUF, safetensors, PyTorch, ONNX, npy, npz, msgpack) as a read-only file system: every tensor is a raw file and a .npy.
#[derive(Parser)]
#[command(
    name = "mount-tensors",
    version,
    disable_version_flag = true,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "mount-tensors [OPTIONS] SOURCE... MOUNTPOINT\n       mount-tensors -u MOUNTPOINT...\n       mount-tensors ls|cat|export|check ...",
    after_help = "SOURCE is a container file, a model folder, a shard index, or any one shard of a set; NAME=SOURCE chooses the name of its folder.\n\
                  ls, cat, export and check are commands: a source of that name is written ./ls.\n\
                  The server stays in the background until -u or a signal ends it. Exit codes: 0 good, 1 failure, 2 usage.\n\
                  Example: mount-tensors model.gguf /tmp/m\n\
                  If another user sees only question marks in a mount: FUSE shows a mount to nobody but its owner unless --allow-other is given."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) mount: MountArgs,
    #[command(flatten)]
    pub(crate) logging: Logging,
    /// Print the version
    #[arg(short = 'V', long, action = clap::ArgAction::Version)]
    version: (),
}

#[derive(Subcommand)]
/// A command that needs no mount.
pub(crate) enum Command {
    /// List the tree without mounting it, or describe one tensor
    Ls(LsArgs),
    /// Write one file of the tree to standard output, without mounting
    Cat(CatArgs),
    /// Copy files or folders of the tree out, without mounting
    #[command(
        override_usage = "mount-tensors export [OPTIONS] SOURCE PATH... DEST\n\n  DEST is a file (what it held is replaced) or a folder for one PATH, a folder for several"
    )]
    Export(ExportArgs),
    /// Read everything; list every issue, and every finite value that f16 would make infinite
    Check(CheckArgs),
}

/// What `mount-tensors SOURCE... MOUNTPOINT` takes.
#[derive(Args)]
pub(crate) struct MountArgs {
    /// Sources, then the mount point
    #[arg(value_name = "SOURCE... MOUNTPOINT", required = true, num_args = 1..)]
    pub(crate) paths: Vec<OsString>,
    /// Stay in the foreground
    #[arg(short, long)]
    pub(crate) foreground: bool,
    /// Unmount the given mount points
    #[arg(short, long)]
    pub(crate) unmount: bool,
    /// Let other users see the mount (for an ordinary user, /etc/fuse.conf must say user_allow_other)
    #[arg(long, alias = "allow_other")]
    pub(crate) allow_other: bool,
    /// Show everything as owned by this user id
    #[arg(long)]
    pub(crate) uid: Option<u32>,
    /// Show everything as owned by this group id
    #[arg(long)]
    pub(crate) gid: Option<u32>,
    /// Take these permission bits away from 0444 and 0555 (octal)
    #[arg(long, value_parser = octal)]
    pub(crate) umask: Option<u16>,
    /// Let the kernel check permission bits (implied by --uid, --gid and --umask)
    #[arg(long, alias = "default_permissions")]
    pub(crate) default_permissions: bool,
    /// Unmount a live mount of this program at the mount point first
    #[arg(long)]
    pub(crate) replace: bool,
    /// Mount over a folder that is not empty
    #[arg(long, alias = "allow_non_empty", alias = "nonempty")]
    pub(crate) allow_non_empty: bool,
    /// Show only these: raw, npy, as (or f32, f16, bf16, raw-f32, raw-f16, raw-bf16, bits), metadata, tokenizer, config, source
    #[arg(long, value_name = "LIST", value_parser = Views::parse)]
    pub(crate) views: Option<Views>,
    /// Where bytes that were read are kept: auto (what is best for each file), always (the kernel's page cache), never (nowhere)
    #[arg(long, value_name = "WHEN", value_parser = cache, default_value = "auto", hide_default_value = true)]
    pub(crate) cache: Setting,
    /// Memory for tensors that are read again and again (1G, 500M; 0: none): by default a quarter of what is free. Needs CAP_SYS_ADMIN
    #[arg(long, alias = "memory_budget", value_name = "SIZE", value_parser = budget, default_value = "", hide_default_value = true)]
    pub(crate) memory_budget: Budget,
    /// Treat any issue as a failure
    #[arg(long)]
    pub(crate) strict: bool,
    /// Write the log to this file
    #[arg(long, alias = "log_file", value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,
    /// Any long option without its dashes, and generic mount options, comma-separated
    #[arg(short, value_name = "KEY[=VALUE],...")]
    o: Option<String>,
}

#[derive(Args)]
pub(crate) struct Logging {
    /// Say more (twice: a line for each request)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Say nothing but errors
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

/// What `ls` takes.
#[derive(Args)]
pub(crate) struct LsArgs {
    /// Long format: mode, size, name
    #[arg(short)]
    pub(crate) long: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The container
    pub(crate) source: OsString,
    /// A path of the tree, or a tensor's name
    pub(crate) path: Option<OsString>,
}

/// What `cat` takes.
#[derive(Args)]
pub(crate) struct CatArgs {
    /// Print numbers as np.savetxt does, a row of the last axis a line
    #[arg(long)]
    pub(crate) text: bool,
    /// The container
    pub(crate) source: OsString,
    /// A file of the tree
    pub(crate) path: OsString,
}

/// What `export` takes.
#[derive(Args)]
pub(crate) struct ExportArgs {
    /// The container
    pub(crate) source: OsString,
    /// Files or folders of the tree, then the destination
    #[arg(value_name = "PATH... DEST", required = true, num_args = 2..)]
    pub(crate) paths: Vec<OsString>,
}

/// What `check` takes.
#[derive(Args)]
pub(crate) struct CheckArgs {
    /// The containers
    #[arg(required = true)]
    pub(crate) sources: Vec<OsString>,
}

fn octal(text: &str) -> std::result::Result<u16, String> {
    u16::from_str_radix(text, 8).ok().filter(|mask| *mask <= 0o777).ok_or_else(|| format!("{text:?} is not an octal mask such as 022"))
}

fn cache(text: &str) -> std::result::Result<Setting, String> {
    match text {
        "auto" => Ok(Setting::Auto),
        "always" => Ok(Setting::Always),
        "never" => Ok(Setting::Never),
        _ => Err("expected auto, always or never".to_string()),
    }
}

/// A size in bytes, or with K, M, G or T (also KiB, MB, ...) for powers of 1024.
fn budget(text: &str) -> std::result::Result<Budget, String> {
    if text.is_empty() {
        return Ok(Budget::Share);
    }
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text[digits.len()..].trim().to_ascii_lowercase();
    let power = match unit.trim_end_matches('b').trim_end_matches('i') {
        "" if unit != "i" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return Err("expected a size such as 500M or 4G".to_string()),
    };
    let number: u64 = digits.parse().map_err(|_| "expected a size such as 500M or 4G".to_string())?;
    number.checked_mul(1 << (10 * power)).map(Budget::Bytes).ok_or_else(|| "is too large".to_string())
}

/// The definition of the command line, for those who list its options.
pub(crate) fn definition() -> clap::Command {
    Cli::command()
}
