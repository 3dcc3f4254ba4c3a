//! The command line: what may be said, and what it means.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, Parser, Subcommand};
use mount_tensors::error::{Error, Result};
use mount_tensors::formats;
use mount_tensors::fs::Fs;
use mount_tensors::source::Source;
use mount_tensors::tree::{Branch, Views};

use crate::{commands, mount};

/// Mount tensor containers (GGUF, safetensors, npy, npz) as a read-only file system: every tensor is a raw file and a .npy.
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
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    mount: MountArgs,
    #[command(flatten)]
    logging: Logging,
    /// Print the version
    #[arg(short = 'V', long, action = clap::ArgAction::Version)]
    version: (),
}

#[derive(Subcommand)]
enum Command {
    /// List the tree without mounting it, or describe one tensor
    Ls(LsArgs),
    /// Write one file of the tree to standard output, without mounting
    Cat(CatArgs),
    /// Copy files or folders of the tree out, without mounting
    #[command(override_usage = "mount-tensors export [OPTIONS] SOURCE PATH... DEST\n\n  DEST is a new file for one PATH, a folder for several")]
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
struct Logging {
    /// Say more (twice: a line for each request)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Say nothing but errors
    #[arg(short, long, global = true)]
    quiet: bool,
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

/// Options of mount(8) and fstab(5) that concern the caller or are always so here; they are accepted and have no effect.
const IGNORED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "_netdev",
    "nofail",
    "ro",
    "rw",
    "exec",
    "noexec",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "sync",
    "async",
    "dirsync",
    "iversion",
    "noiversion",
    "silent",
    "loud",
    "mand",
    "nomand",
    "remount",
    "auto_unmount",
];

/// Whether the option with this long name needs a value.
fn takes_value(name: &str) -> bool {
    Cli::command().get_arguments().any(|argument| argument.get_long() == Some(name) && argument.get_action().takes_values())
}

/// Whether a word names views and nothing else.
fn is_view(word: &[u8]) -> bool {
    std::str::from_utf8(word).is_ok_and(|word| Views::parse(word).is_ok())
}

/// Writes every `-o key=value,...` out as the long options that it stands for.
fn expand(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut out = Vec::new();
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next() {
        let bytes = argument.as_bytes();
        let list = match bytes {
            b"--" => {
                out.push(argument);
                out.extend(arguments.by_ref());
                break;
            }
            b"-o" => arguments.next().map(OsStringExt::into_vec),
            // `-fo LIST`: other one-letter options may stand before it.
            [b'-', letters @ .., b'o'] if !letters.is_empty() && letters.iter().all(|l| b"fuvq".contains(l)) => {
                out.push(OsString::from_vec([b"-", letters].concat()));
                arguments.next().map(OsStringExt::into_vec)
            }
            _ => bytes.strip_prefix(b"-o").map(<[u8]>::to_vec),
        };
        match list {
            None => out.push(argument),
            Some(list) => {
                let mut views = false;
                for option in list.split(|b| *b == b',').filter(|o| !o.is_empty()) {
                    // The commas of a list of views are those between options too; no view is called as an option is.
                    if let (true, Some(list)) = (views && is_view(option), out.last_mut()) {
                        list.push(":");
                        list.push(OsStr::from_bytes(option));
                        continue;
                    }
                    let key = option.split(|b| *b == b'=').next().unwrap_or_default();
                    let name = String::from_utf8_lossy(key).into_owned();
                    let generic = IGNORED.contains(&name.as_str())
                        || ["max_read", "context", "fscontext", "defcontext", "rootcontext"].contains(&name.as_str())
                        || name.starts_with("x-")
                        || name.starts_with("X-")
                        || name == "comment";
                    if generic || name == "fsname" || name == "subtype" {
                        continue;
                    }
                    let name = name.replace('_', "-");
                    views = name == "views" && option.len() > key.len();
                    // Without its `=`, an option that needs a value would take the next argument for it.
                    let value = if option.len() == key.len() && takes_value(&name) { b"=" } else { &option[key.len()..] };
                    let long = [&b"--"[..], name.as_bytes(), value].concat();
                    out.push(OsString::from_vec(long));
                }
            }
        }
    }
    out
}

/// Runs the program and gives its exit code.
pub(crate) fn run() -> Result<u8> {
    let cli = match Cli::try_parse_from(expand(std::env::args_os())) {
        Ok(cli) => cli,
        Err(e) => {
            let code = u8::try_from(e.exit_code()).unwrap_or(2);
            let _ = e.print();
            return Ok(code);
        }
    };
    let log_file = cli.mount.log_file.as_deref().filter(|_| cli.command.is_none());
    start_log(&cli.logging, log_file)?;
    match cli.command {
        Some(Command::Ls(args)) => commands::ls(&args),
        Some(Command::Cat(args)) => commands::cat(&args),
        Some(Command::Export(args)) => commands::export(&args, cli.logging.quiet),
        Some(Command::Check(args)) => commands::check(&args),
        None if cli.mount.unmount => mount::unmount(&cli.mount.paths),
        None if cli.mount.paths.len() < 2 => {
            let _ = std::io::Write::write_all(&mut std::io::stderr(), b"mount-tensors: expected SOURCE... MOUNTPOINT, found one path only\nhint: see --help\n");
            Ok(2)
        }
        None => mount::run(&cli.mount),
    }
}

fn start_log(logging: &Logging, file: Option<&Path>) -> Result<()> {
    let level = match (logging.quiet, logging.verbose) {
        (true, _) => "error",
        (_, 0) => "warn",
        (_, 1) => "info",
        _ => "debug",
    };
    // fuser reports each ended connection as an error of its own.
    let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| format!("{level},fuser=off"));
    let mut builder = env_logger::Builder::new();
    builder.parse_filters(&filter);
    match file {
        Some(path) => {
            let file = std::fs::File::options().create(true).append(true).open(path);
            let file = file.map_err(|e| Error::io("cannot open the log file", e).in_file(path))?;
            builder.target(env_logger::Target::Pipe(Box::new(file)));
        }
        None => {
            builder.format(|out, record| {
                use std::io::Write;
                let text = mount_tensors::error::printable(&record.args().to_string());
                writeln!(out, "mount-tensors: {}: {text}", record.level().as_str().to_lowercase())
            });
        }
    }
    builder.init();
    // A panic in a request is caught and logged; its text goes to the log as well, not to a terminal that nobody reads.
    std::panic::set_hook(Box::new(|info| log::error!("internal error: {info}")));
    Ok(())
}

/// A source argument: the name it asks for, and its path. A path that exists is taken as it stands even if it holds `=`.
fn split_name(argument: &OsStr) -> (Option<Vec<u8>>, PathBuf) {
    let path = PathBuf::from(argument);
    let bytes = argument.as_bytes();
    match bytes.iter().position(|b| *b == b'=') {
        Some(at) if at > 0 && std::fs::symlink_metadata(&path).is_err() && !bytes[..at].contains(&b'/') => {
            (Some(bytes[..at].to_vec()), PathBuf::from(OsString::from_vec(bytes[at + 1..].to_vec())))
        }
        _ => (None, path),
    }
}

/// Opens every source; several shards of one set count once.
pub(crate) fn open_sources(arguments: &[OsString]) -> Result<Vec<Branch>> {
    let mut claimed = std::collections::HashSet::new();
    let mut branches: Vec<(Option<Vec<u8>>, PathBuf, formats::Collection)> = Vec::new();
    for argument in arguments {
        let (name, path) = split_name(argument);
        let identity = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file).map(|m| {
            use std::os::unix::fs::MetadataExt;
            (m.dev(), m.ino())
        });
        if name.is_none() && identity.is_some_and(|identity| claimed.contains(&identity)) {
            continue;
        }
        let collection = formats::open(&path)?;
        let catalogs = collection.top.iter().chain(collection.parts.iter().map(|(_, c)| c));
        claimed.extend(catalogs.flat_map(|c| c.sources()).filter_map(|s: &std::sync::Arc<Source>| s.identity()));
        branches.push((name, path, collection));
    }
    let single = branches.len() == 1;
    let branches = branches.into_iter().map(|(name, path, collection)| {
        let name = name.or_else(|| (!single).then(|| formats::source_name(&path)));
        Branch { name, top: collection.top, parts: collection.parts }
    });
    Ok(branches.collect())
}

/// The file system of one source, for the commands that need no mount.
pub(crate) fn open_fs(source: &OsStr) -> Result<Fs> {
    Ok(Fs::new(open_sources(&[source.to_os_string()])?, Views::ALL))
}
