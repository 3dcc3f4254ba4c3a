//! The command line: what may be said, and what it means.

mod options;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use clap::{CommandFactory, Parser};
use mount_tensors::error::{Error, Result};
use mount_tensors::fs::Fs;
use mount_tensors::view::Views;

use self::options::{Cli, Command, Logging, definition};
use crate::{commands, mount};

pub(crate) use self::options::{CatArgs, CheckArgs, ExportArgs, LsArgs, MountArgs};
pub(crate) use mount_tensors::sources::open as open_sources;

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

/// The names of all long options.
fn long_options() -> Vec<String> {
    let mut command = definition();
    command.build();
    let names = command.get_arguments().flat_map(|argument| argument.get_long().into_iter().chain(argument.get_all_aliases().unwrap_or_default()));
    names.map(str::to_string).collect()
}

/// Whether the option with this long name needs a value.
fn takes_value(name: &str) -> bool {
    Cli::command().get_arguments().any(|argument| argument.get_long() == Some(name) && argument.get_action().takes_values())
}

/// Whether a word names views and nothing else.
fn is_view(word: &[u8]) -> bool {
    std::str::from_utf8(word).is_ok_and(|word| Views::parse(word).is_ok())
}

/// Writes every `-o key=value,...` out as the long options that it stands for; the error names an option that there is not.
fn expand(arguments: impl Iterator<Item = OsString>) -> std::result::Result<Vec<OsString>, String> {
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
                    let long = name.replace('_', "-");
                    if !long_options().contains(&long) {
                        return Err(format!("unknown option {} after -o", mount_tensors::error::quoted(key)));
                    }
                    views = long == "views" && option.len() > key.len();
                    // Without its `=`, an option that needs a value would take the next argument for it.
                    let value = if option.len() == key.len() && takes_value(&long) { b"=" } else { &option[key.len()..] };
                    out.push(OsString::from_vec([&b"--"[..], long.as_bytes(), value].concat()));
                }
            }
        }
    }
    Ok(out)
}

/// Runs the program and gives its exit code.
pub(crate) fn run() -> Result<u8> {
    let arguments = match expand(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(e) => {
            let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("mount-tensors: {e}\nhint: see --help\n").as_bytes());
            return Ok(2);
        }
    };
    let cli = match Cli::try_parse_from(arguments) {
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

/// The file system of one source, for the commands that need no mount.
pub(crate) fn open_fs(source: &OsStr) -> Result<Fs> {
    Ok(Fs::new(open_sources(&[source.to_os_string()])?, Views::ALL))
}
