//! The mount: its mount point, the process in the background, signals, and the end.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fuser::{Config, MountOption, Session, SessionACL};
use mount_tensors::error::{Error, Result, counted, printable, reason};
use mount_tensors::fs::Fs;
use mount_tensors::fuse::{self, Adapter, OpenedInodes, Ownership, PendingOpen};
use mount_tensors::opens::{Opens, Setting};
use mount_tensors::pool::{Budget, Pool};
use mount_tensors::sys::{self, Fork, Signals};
use mount_tensors::tree::{View, Views};

use crate::cli::{MountArgs, open_sources};

/// The file system type in /proc/mounts.
const TYPE: &str = "fuse.mount-tensors";
/// How long the parent waits for the child to answer.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long readers may go on after a signal has detached the mount.
const GRACE: Duration = Duration::from_secs(10);
/// How long a mount may take to answer before it counts as silent.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// How many issues are told on standard error; all are in issues.json.
const ISSUES_TOLD: usize = 10;

/// Mounts and returns when the mount answers (or, in the foreground, when it has ended).
pub(crate) fn run(args: &MountArgs) -> Result<u8> {
    let Some((mountpoint, sources)) = args.paths.split_last() else { return Ok(2) };
    let branches = open_sources(sources)?;
    let fs = Fs::new(branches, args.views.unwrap_or(Views::ALL));
    tell_issues(&fs, args.strict)?;
    let greeting = greeting(&fs, Path::new(mountpoint));
    let mut point = MountPoint::prepare(Path::new(mountpoint), args)?;
    let title = title(sources);
    if args.foreground {
        let mounted = Mounted::new(fs, &mut point, &title, args).inspect_err(|_| point.remove_if_created())?;
        greet(&greeting);
        return mounted.serve(point);
    }
    in_background(fs, point, &title, args, &greeting)
}

/// What a user reads when the mount answers: what it holds, and how NumPy opens the first of it.
fn greeting(fs: &Fs, point: &Path) -> String {
    let sets = fs.tree().sets();
    let tensors: u64 = sets.iter().map(|set| u64::from(set.catalog().len())).sum();
    let files: usize = sets.iter().map(|set| set.catalog().containers().count()).sum();
    let (tensors, files) = (counted(tensors, "tensor", "tensors"), counted(files as u64, "file", "files"));
    let mut text = format!("{}: {tensors} of {files}\n", printable(&point.to_string_lossy()));
    if let [only] = sets {
        let path = only.catalog().tensors().find_map(|tensor| only.path(View::Npy, tensor));
        // What Python would read in another way is not shown as something to be typed.
        let path = path.and_then(|path| point.join(OsString::from_vec(path)).into_os_string().into_string().ok());
        if let Some(path) = path.filter(|path| printable(path) == *path && !path.contains(['"', '\\'])) {
            text.push_str(&format!("np.load(\"{path}\", mmap_mode=\"r\")\n"));
        }
    }
    text
}

fn greet(greeting: &str) {
    // Under --quiet only errors are told; standard output may be closed.
    if log::max_level() > log::LevelFilter::Error {
        let _ = std::io::stdout().write_all(greeting.as_bytes());
    }
}

fn tell_issues(fs: &Fs, strict: bool) -> Result<()> {
    let issues: Vec<_> = fs.tree().sets().iter().flat_map(|set| set.catalog().issues()).collect();
    for issue in issues.iter().take(ISSUES_TOLD) {
        log::warn!("{}: {}: {}", issue.place, issue.what, issue.done);
    }
    if issues.len() > ISSUES_TOLD {
        log::warn!("{} more issues, see issues.json", issues.len() - ISSUES_TOLD);
    }
    match issues.first() {
        Some(first) if strict => {
            let count = counted(issues.len() as u64, "issue", "issues");
            Err(Error::format(format!("{count}, and --strict makes any a failure; the first: {}: {}", first.place, first.what)))
        }
        _ => Ok(()),
    }
}

/// What stands in the first column of /proc/mounts: readable, and free of what mount options treat as syntax.
fn title(sources: &[OsString]) -> String {
    let name = match sources {
        [one] => String::from_utf8_lossy(Path::new(one).file_name().unwrap_or(OsStr::new("tensors")).as_bytes()).into_owned(),
        many => format!("{}-sources", many.len()),
    };
    let safe: String = name.chars().map(|c| if c.is_alphanumeric() || "._-+@:".contains(c) { c } else { '_' }).collect();
    if safe.is_empty() { "tensors".to_string() } else { safe }
}

/// A folder that is ready to be mounted on.
struct MountPoint {
    path: PathBuf,
    /// It was made for this mount, and goes with it.
    created: bool,
}

impl MountPoint {
    fn prepare(given: &Path, args: &MountArgs) -> Result<Self> {
        let refuse = |what: &str| Error::unsupported(format!("the mount point {what}")).in_file(given);
        let path = absolute(given)?;
        while args.replace && is_ours(&path) {
            // Without asking it anything: its server may hang.
            detach(&path)?;
        }
        heal(&path)?;
        match std::fs::symlink_metadata(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                std::fs::create_dir(&path).map_err(|e| Error::io("cannot create the mount point", e).in_file(given))?;
                return Ok(Self { path, created: true });
            }
            Err(e) => return Err(Error::io("cannot look at the mount point", e).in_file(given)),
            Ok(_) => {}
        }
        let meta = std::fs::metadata(&path).map_err(|e| Error::io("cannot follow the mount point", e).in_file(given).hint("a link that leads nowhere?"))?;
        if !meta.is_dir() {
            return Err(refuse("is a file, expected a folder"));
        }
        if is_ours(&path) {
            return Err(refuse("has a live mount of mount-tensors already").hint("unmount it with -u, or say --replace"));
        }
        let mut entries = match std::fs::read_dir(&path) {
            // A server that was unmounted just now has removed the folder that it had made.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                std::fs::create_dir(&path).map_err(|e| Error::io("cannot create the mount point", e).in_file(given))?;
                return Ok(Self { path, created: true });
            }
            other => other.map_err(|e| Error::io("cannot list the mount point", e).in_file(given))?,
        };
        if !args.allow_non_empty && entries.next().is_some() {
            return Err(refuse("is a folder that is not empty").hint("--allow-non-empty hides what is in it while mounted"));
        }
        Ok(Self { path, created: false })
    }

    fn remove_if_created(&self) {
        if self.created {
            // Somebody else may have put something there, or removed it; then it stays as it is.
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// The absolute path of a mount point whose own last component is not touched, since a dead mount cannot be.
fn absolute(path: &Path) -> Result<PathBuf> {
    if let Ok(real) = std::fs::canonicalize(path) {
        return Ok(real);
    }
    let absolute = std::path::absolute(path).map_err(|e| Error::io("cannot make the path absolute", e).in_file(path))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else { return Ok(absolute) };
    Ok(std::fs::canonicalize(parent).map_or_else(|_| absolute.clone(), |parent| parent.join(name)))
}

/// One mount of the mount table.
struct Entry {
    /// The device number, which no two live mounts share; that of a mount that is gone is given out again.
    device: Vec<u8>,
    /// Where it is mounted now: a folder above it may have been renamed since.
    point: PathBuf,
    /// The file system type.
    kind: Vec<u8>,
}

/// Every mount that this process sees, what lies below before what lies on it.
fn mounts() -> Vec<Entry> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mut mounts = Vec::new();
    for line in table.split(|b| *b == b'\n') {
        let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        let Some(dash) = fields.iter().position(|f| *f == b"-") else { continue };
        if let (Some(device), Some(point), Some(kind)) = (fields.get(2), fields.get(4), fields.get(dash + 1)) {
            mounts.push(Entry { device: device.to_vec(), point: OsString::from_vec(unescape(point)).into(), kind: kind.to_vec() });
        }
    }
    mounts
}

/// The mounts at a path, the topmost last.
fn mounts_at(path: &Path) -> Vec<Entry> {
    mounts().into_iter().filter(|mount| mount.point == path).collect()
}

/// Undoes the octal escapes of /proc/self/mountinfo (`\040` is a blank).
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|d| *byte == b'\\' && d.iter().all(|d| (b'0'..=b'7').contains(d)));
        match octal {
            Some(digits) => {
                out.push(digits.iter().fold(0u32, |n, d| n * 8 + u32::from(d - b'0')) as u8);
                rest = &after[3..];
            }
            None => {
                out.push(*byte);
                rest = after;
            }
        }
    }
    out
}

fn is_ours(path: &Path) -> bool {
    mounts_at(path).last().is_some_and(|top| top.kind == TYPE.as_bytes())
}

/// How a mount answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pulse {
    Alive,
    /// Its server is gone.
    Dead,
    /// Its server is there and does not answer: it was stopped, or hangs.
    Silent,
}

/// Asks a mount. Not by stat: the kernel keeps the attributes of the root for as long as it is told to, also after the server's end.
fn pulse(path: &Path) -> Pulse {
    let (tell, told) = std::sync::mpsc::channel();
    let asked = path.to_path_buf();
    let asking = std::thread::spawn(move || tell.send(sys::ask(&asked)));
    match told.recv_timeout(ANSWER_LIMIT) {
        Ok(answer) => {
            // No thread may be left when the server is forked off.
            let _ = asking.join();
            if answer.is_err_and(|e| matches!(e.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))) { Pulse::Dead } else { Pulse::Alive }
        }
        Err(_) => Pulse::Silent,
    }
}

/// Detaches what a killed server of this program left behind; never touches a live mount or somebody else's.
fn heal(path: &Path) -> Result<()> {
    loop {
        match pulse(path) {
            Pulse::Alive => return Ok(()),
            Pulse::Silent => {
                let error = Error::unsupported("the mount point has a mount that does not answer: its server was stopped or hangs").in_file(path);
                return Err(if is_ours(path) { error.hint("unmount it with -u, or say --replace") } else { error });
            }
            Pulse::Dead => {}
        }
        if !is_ours(path) {
            return Err(Error::unsupported("the mount point holds a dead mount of another program")
                .in_file(path)
                .hint("unmount it with umount or fusermount3 -u"));
        }
        detach(path)?;
        let _ = writeln!(std::io::stderr(), "mount-tensors: {}: removed the dead mount of a server that was killed", printable(&path.to_string_lossy()));
    }
}

/// Unmounts even what is in use.
fn detach(path: &Path) -> Result<()> {
    take_down(path, true).map_err(|e| Error::io("cannot unmount", e).in_file(path))
}

fn take_down(path: &Path, lazily: bool) -> std::io::Result<()> {
    match sys::unmount(path, lazily) {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => fusermount(path, lazily),
        other => other,
    }
}

/// Unmounts through the setuid helper, as ordinary users must.
fn fusermount(path: &Path, lazily: bool) -> std::io::Result<()> {
    for helper in ["fusermount3", "fusermount"] {
        let mut command = Command::new(helper);
        command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(path).stdin(Stdio::null());
        match command.output() {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr).trim().to_string();
                let busy = text.contains("busy");
                return Err(if busy { std::io::Error::from_raw_os_error(libc::EBUSY) } else { std::io::Error::other(text) });
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    Err(std::io::Error::other("fusermount3 is not installed, and only root can unmount without it"))
}

/// `-u`: unmounts each of the mount points.
pub(crate) fn unmount(points: &[OsString]) -> Result<u8> {
    let mut failures = Vec::new();
    for point in points {
        let given = Path::new(point);
        let result = absolute(given).and_then(|path| {
            if !is_ours(&path) {
                return Err(Error::unsupported("is not a mount of mount-tensors").in_file(given));
            }
            let is_busy = |e: &std::io::Error| e.raw_os_error() == Some(libc::EBUSY);
            let taken_down = match take_down(&path, false) {
                // Nobody can go on reading what nobody serves.
                Err(e) if is_busy(&e) && pulse(&path) == Pulse::Dead => take_down(&path, true),
                other => other,
            };
            taken_down.map_err(|e| {
                let busy = is_busy(&e);
                let error = Error::io("cannot unmount", e).in_file(given);
                if busy {
                    error.hint("a program has a file open in it or its working directory there; close it, or stop the server with SIGTERM")
                } else {
                    error
                }
            })
        });
        if let Err(e) = result {
            failures.push(e);
        }
    }
    let last = failures.pop();
    for failure in failures {
        let _ = writeln!(std::io::stderr(), "mount-tensors: {failure}");
    }
    last.map_or(Ok(0), Err)
}

/// A mount that answers.
struct Mounted {
    fs: Arc<Fs>,
    session: Session<Adapter>,
    opened: OpenedInodes,
    opens: Arc<Opens<PendingOpen>>,
    signals: Signals,
    /// Its device number in the mount table.
    device: Option<Vec<u8>>,
}

impl Mounted {
    fn new(fs: Fs, point: &mut MountPoint, title: &str, args: &MountArgs) -> Result<Self> {
        let signals = Signals::block();
        let (uid, gid) = sys::ids();
        let owner = Ownership { uid: args.uid.unwrap_or(uid), gid: args.gid.unwrap_or(gid), umask: args.umask.unwrap_or(0) };
        let checked = args.default_permissions || args.uid.is_some() || args.gid.is_some() || args.umask.is_some();
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::RO,
            MountOption::NoSuid,
            MountOption::NoDev,
            MountOption::NoAtime,
            MountOption::FSName(title.to_string()),
            // As a custom option: fuser gives Subtype to fusermount only, and the type must be right for root as well.
            MountOption::CUSTOM("subtype=mount-tensors".to_string()),
        ];
        if checked {
            config.mount_options.push(MountOption::DefaultPermissions);
        }
        config.acl = if args.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8)));
        config.clone_fd = true;
        let fs = Arc::new(fs);
        device()?;
        let (session, opened, opens) = loop {
            let opens = Arc::new(Opens::new(args.cache, pool(args), true));
            let (adapter, opened) = Adapter::new(Arc::clone(&fs), owner, Arc::clone(&opens));
            match Session::new(adapter, &point.path, &config) {
                Ok(session) => break (session, opened, opens),
                // A server that was unmounted just now has removed the folder that it had made; once something is mounted there it cannot.
                Err(_) if std::fs::create_dir(&point.path).is_ok() => point.created = true,
                Err(e) => return Err(refused(e, &point.path, args)),
            }
        };
        let others = if args.allow_other { "others may enter" } else { "nobody else may enter" };
        log::info!("{}: mounted, owned by user {}, {others}", point.path.display(), owner.uid);
        let device = mounts_at(&point.path).pop().map(|top| top.device);
        fuse::start_filling(Arc::clone(&fs), Arc::clone(&opens)).map_err(|e| Error::io("cannot start a thread", e))?;
        Ok(Self { fs, session, opened, opens, signals, device })
    }

    /// Serves until it is unmounted or told to stop.
    fn serve(self, point: MountPoint) -> Result<u8> {
        let Self { fs, session, opened, opens, signals, device } = self;
        let notifier = session.notifier();
        let over = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&over);
        let server = std::thread::Builder::new().name("serve".to_string()).spawn(move || {
            let ended = run_to_the_end(session);
            // Wakes the thread that waits for signals, which must not take this for a wish to unmount: its device number may be another mount's by now.
            tell.store(true, Ordering::Release);
            sys::signal_self();
            ended
        });
        let server = server.map_err(|e| Error::io("cannot start a thread", e))?;
        sys::give_memory_back();
        let mut stopping: Option<std::time::Instant> = None;
        // Any later change counts as well: of another source, or of one that was cut and is rewritten now.
        let mut health = fs.health();
        while !server.is_finished() {
            match signals.wait(Duration::from_secs(1)) {
                None if stopping.is_some_and(|since| since.elapsed() > GRACE) => {
                    log::warn!("{}: readers were still at work {} s after the signal", point.path.display(), GRACE.as_secs());
                    break;
                }
                None => {
                    opens.tick();
                    let now = fs.health();
                    if now != health {
                        health = now;
                        opened.invalidate_changed(&fs, &notifier);
                    }
                }
                Some(_) if over.load(Ordering::Acquire) => break,
                Some(_) if stopping.is_some() => break,
                Some(_) => {
                    // The name is gone at once; who has a file open may read it to its end.
                    stopping = Some(std::time::Instant::now());
                    // Another server may have taken the place meanwhile (--replace).
                    if let Some(own) = mounts().into_iter().find(|mount| Some(&mount.device) == device.as_ref())
                        && mounts_at(&own.point).last().is_some_and(|top| top.device == own.device)
                        && let Err(e) = take_down(&own.point, true)
                    {
                        log::error!("{}: cannot unmount: {e}", point.path.display());
                        break;
                    }
                }
            }
        }
        point.remove_if_created();
        log::info!("{}: unmounted", point.path.display());
        if over.load(Ordering::Acquire)
            && let Ok(Err(e)) = server.join()
        {
            return Err(Error::io("the connection to the kernel failed", e));
        }
        Ok(0)
    }
}

/// The place for tensors in huge pages, where it may be had: that needs CAP_SYS_ADMIN.
fn pool(args: &MountArgs) -> Option<Pool> {
    if args.cache != Setting::Auto || args.memory_budget == Budget::Bytes(0) {
        return None;
    }
    Pool::new(args.memory_budget).inspect_err(|e| log::info!("no tensor is put into huge pages: {e}")).ok()
}

/// Runs a session until it is unmounted, and leaves the mount point alone after that. By itself fuser 0.18 would unmount it once more at the end: it takes a
/// device that polls as disconnected for one that is mounted, and so takes away what lies below, or what was mounted there meanwhile.
fn run_to_the_end(session: Session<Adapter>) -> std::io::Result<()> {
    let mut running = ManuallyDrop::new(session.spawn()?);
    let thread = std::mem::replace(&mut running.guard, std::thread::spawn(|| Ok(())));
    thread.join().unwrap_or_else(|_| Err(std::io::Error::other("a thread that talks to the kernel has panicked")))
}

/// Checks that the FUSE device can be opened, since its absence has causes and cures of its own.
fn device() -> Result<()> {
    let path = Path::new("/dev/fuse");
    match std::fs::File::options().read(true).write(true).open(path) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(Error::io("cannot mount: the FUSE device is missing", e).in_file(path).hint(
            "in a container, start it with --device /dev/fuse --cap-add SYS_ADMIN; elsewhere load the fuse module. The commands ls, cat, export and check need no mount",
        )),
        Err(e) => Err(Error::io("cannot mount: the FUSE device cannot be opened by this user", e).in_file(path).hint(
            "it is mode 0666 on ordinary systems; in a container, its device must be allowed. The commands ls, cat, export and check need no mount",
        )),
    }
}

fn refused(error: std::io::Error, point: &Path, args: &MountArgs) -> Error {
    let text = error.to_string();
    let hint = if text.contains("user_allow_other") {
        "an ordinary user may give --allow-other only if /etc/fuse.conf says user_allow_other"
    } else if error.kind() == std::io::ErrorKind::NotFound {
        "an ordinary user needs fusermount3 to mount: install the package fuse3"
    } else if text.contains("Permission denied") || text.contains("EACCES") || text.contains("not permitted") {
        "in a container this needs --cap-add SYS_ADMIN, often also --security-opt apparmor=unconfined; elsewhere the mount point must be yours and writable"
    } else {
        "the commands ls, cat, export and check need no mount"
    };
    let who = if args.allow_other { " with --allow-other" } else { "" };
    let what = text.trim().trim_end_matches('.').to_string();
    Error::unsupported(format!("cannot mount{who}: {}", if what.is_empty() { reason(&error) } else { printable(&what) })).in_file(point).hint(hint)
}

/// Mounts in a child process; returns when the mount answers.
fn in_background(fs: Fs, point: MountPoint, title: &str, args: &MountArgs, greeting: &str) -> Result<u8> {
    let (mut from_child, to_parent) = std::io::pipe().map_err(|e| Error::io("cannot make a pipe", e))?;
    let fork = sys::fork().map_err(|e| Error::io("cannot start the server", e))?;
    if let Fork::Parent(child) = fork {
        drop(to_parent);
        let mut answer = Vec::new();
        let answered = sys::readable_within(&from_child, START_LIMIT);
        if answered {
            let _ = from_child.read_to_end(&mut answer);
        }
        let failed = |what: &str| Err(Error::unsupported(what).in_file(&point.path));
        match answer.as_slice() {
            b"mounted" if std::fs::metadata(&point.path).is_ok() => {
                greet(greeting);
                Ok(0)
            }
            b"mounted" => failed("the server ended right after it had mounted"),
            b"" => {
                // One that is still at work must not mount after all.
                sys::stop(child);
                sys::wait(child);
                point.remove_if_created();
                failed(if answered { "the server ended before it could mount" } else { "the server did not answer in time" })
            }
            text => {
                let _ = writeln!(std::io::stderr(), "mount-tensors: {}", String::from_utf8_lossy(text));
                Ok(1)
            }
        }
    } else {
        drop(from_child);
        serve_child(fs, point, title, args, to_parent)
    }
}

/// The child's part: mounts, tells the parent, and serves.
fn serve_child(fs: Fs, mut point: MountPoint, title: &str, args: &MountArgs, mut to_parent: std::io::PipeWriter) -> Result<u8> {
    sys::new_session();
    let answer = |to_parent: &mut std::io::PipeWriter, text: &str| {
        // A parent that was killed has nobody to tell.
        let _ = to_parent.write_all(text.as_bytes());
    };
    let mounted = match Mounted::new(fs, &mut point, title, args) {
        Ok(mounted) => mounted,
        Err(e) => {
            point.remove_if_created();
            answer(&mut to_parent, &e.to_string());
            return Ok(1);
        }
    };
    // The folder it was started in must not be kept busy, nor whoever waits for the end of its output.
    let _ = std::env::set_current_dir("/");
    sys::detach_streams();
    answer(&mut to_parent, "mounted");
    drop(to_parent);
    mounted.serve(point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_hold_nothing_that_mount_options_would_parse() {
        let title = title(&[OsString::from_vec(b"dir/a,rw,b\\c \xff.gguf".to_vec())]);
        assert_eq!(title, "a_rw_b_c__.gguf");
    }

    #[test]
    fn mountinfo_escapes_are_undone() {
        assert_eq!(unescape(br"/mnt/a\040b\134c"), br"/mnt/a b\c");
        assert_eq!(unescape(br"/mnt/\04"), br"/mnt/\04");
    }
}
