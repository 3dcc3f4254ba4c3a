//! What the tests that really mount share: a place that cleans up after itself, commands with a limit on every wait, and a look at the mount table.

pub(crate) mod gguf;
pub(crate) mod posix;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_mount-tensors");
/// How long any one command may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);
/// After this long, what a test has mounted is cut off by force, so that a server that hangs fails its test and no more.
const WATCHDOG: Duration = Duration::from_secs(80);
/// The variable by which the servers that a test has started are known.
const MARK: &str = "MOUNT_TENSORS_TEST_PLACE";

/// Whether mounts can be tested. Where they cannot, this panics, unless `MOUNT_TENSORS_NO_FUSE=1` asks for a skip, which is said aloud.
pub(crate) fn fuse_is_here() -> bool {
    if std::env::var_os("MOUNT_TENSORS_NO_FUSE").is_some_and(|v| v == "1") {
        skipped("no FUSE here");
        return false;
    }
    static PROBE: OnceLock<Result<(), String>> = OnceLock::new();
    let probe = PROBE.get_or_init(|| {
        fs::File::options().read(true).write(true).open("/dev/fuse").map_err(|e| format!("/dev/fuse: {e}"))?;
        let place = Place::new();
        let done = run(place.program().arg(fixture("gguf/good/tiny.gguf")).arg(place.path("probe")));
        if done.code == Some(0) { Ok(()) } else { Err(done.err) }
    });
    if let Err(why) = probe {
        panic!("this test mounts for real, and FUSE cannot be used here: {why}\nMOUNT_TENSORS_NO_FUSE=1 skips the tests that mount");
    }
    true
}

/// Says aloud that a test, or a part of it, does not run here.
pub(crate) fn skipped(why: &str) {
    use std::io::Write;
    // Not println: the test harness would swallow it for a test that passes.
    let name = thread::current().name().unwrap_or("?").to_string();
    // In one piece, since other tests write as well.
    let _ = std::io::stderr().write_all(format!("skipped: {why} ({name})\n").as_bytes());
}

/// Whether a tool is installed; its absence is said aloud.
pub(crate) fn has_tool(name: &str) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(|dir| dir.join(name).is_file());
    if !found {
        skipped(&format!("{name} is not installed"));
    }
    found
}

/// Whether this is root; what needs root is skipped aloud elsewhere.
pub(crate) fn is_root() -> bool {
    let root = posix::user() == 0;
    if !root {
        skipped("only root can do this");
    }
    root
}

pub(crate) fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path)
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Done {
    /// The output of a command that must be good.
    #[track_caller]
    pub(crate) fn good(self) -> String {
        assert_eq!(self.code, Some(0), "standard error: {}", self.err);
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// The message of a command that must have failed in the way that users are promised.
    #[track_caller]
    pub(crate) fn refused(self) -> String {
        assert_eq!(self.code, Some(1), "standard error: {}", self.err);
        let mut lines = self.err.lines().filter(|line| !line.starts_with("mount-tensors: warn: "));
        let first = lines.next().unwrap_or_default();
        assert!(first.starts_with("mount-tensors: ") && first.len() > 20, "no readable message: {:?}", self.err);
        for line in lines {
            assert!(line.starts_with("hint: "), "more than a message and a hint: {:?}", self.err);
        }
        assert!(!self.err.contains("panicked") && !self.err.contains("internal error"), "{}", self.err);
        assert!(self.out.is_empty(), "a failure writes nothing to standard output: {:?}", self.out);
        self.err
    }
}

/// Runs a command to its end. Whoever keeps its output open after that, a server in the background for one, fails the test.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> Done {
    start(command).finish(LIMIT)
}

/// Runs a command that unmounts, which must be silent and good. A child that another test is starting just now has every open file of this process until it
/// becomes another program, so that a mount may be busy for a moment without anybody using it.
#[track_caller]
pub(crate) fn until_not_busy(command: &mut Command) {
    let started = Instant::now();
    loop {
        let done = run(command);
        if !(done.err.contains("busy") && started.elapsed() < Duration::from_secs(3)) {
            assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// A command that goes on while the test does.
pub(crate) struct Running {
    child: std::process::Child,
    out: mpsc::Receiver<Vec<u8>>,
    err: mpsc::Receiver<Vec<u8>>,
    what: String,
}

#[track_caller]
pub(crate) fn start(command: &mut Command) -> Running {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let what = format!("{command:?}");
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{what}: {e}"));
    let out = collect(child.stdout.take().unwrap());
    let err = collect(child.stderr.take().unwrap());
    Running { child, out, err, what }
}

fn collect(mut from: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver
}

impl Running {
    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    #[track_caller]
    pub(crate) fn finish(mut self, limit: Duration) -> Done {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if started.elapsed() > limit {
                let _ = self.child.kill();
                panic!("{} did not end within {limit:?}", self.what);
            }
            thread::sleep(Duration::from_millis(2));
        };
        let late = |_| panic!("{} has ended, but something still holds its output open", self.what);
        let out = self.out.recv_timeout(Duration::from_secs(10)).unwrap_or_else(late);
        let err = self.err.recv_timeout(Duration::from_secs(10)).unwrap_or_else(late);
        Done { code: status.code(), out, err: String::from_utf8_lossy(&err).into_owned() }
    }
}

/// Waits until something is so, and says what did not come about otherwise.
#[track_caller]
pub(crate) fn eventually(what: &str, limit: Duration, mut so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !so() {
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// One line of the mount table.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) point: PathBuf,
    pub(crate) kind: String,
    pub(crate) source: String,
    pub(crate) options: BTreeSet<String>,
    connection: String,
}

/// The mount table.
pub(crate) fn mounts() -> Vec<Line> {
    let table = fs::read("/proc/self/mountinfo").unwrap();
    table.split(|b| *b == b'\n').filter_map(line).collect()
}

fn line(text: &[u8]) -> Option<Line> {
    let fields: Vec<&[u8]> = text.split(|b| *b == b' ').collect();
    let dash = fields.iter().position(|f| *f == b"-")?;
    let word = |at: usize| Some(String::from_utf8_lossy(fields.get(at)?).into_owned());
    let options = [word(5)?, word(dash + 3)?].join(",").split(',').map(str::to_string).collect();
    let connection = word(2)?.split(':').next_back()?.to_string();
    Some(Line { point: unescaped(fields.get(4)?), kind: word(dash + 1)?, source: word(dash + 2)?, options, connection })
}

fn unescaped(field: &[u8]) -> PathBuf {
    let mut out = Vec::new();
    let mut at = 0;
    while at < field.len() {
        if field[at] == b'\\' {
            out.push(u8::from_str_radix(std::str::from_utf8(&field[at + 1..at + 4]).unwrap(), 8).unwrap());
            at += 4;
        } else {
            out.push(field[at]);
            at += 1;
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// A folder for one test. When it goes, even in a panic, everything that was mounted in it goes, and every server that was started from it.
pub(crate) struct Place {
    dir: Option<TempDir>,
    root: PathBuf,
    id: String,
    watchdog: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl Place {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let dir = tempfile::Builder::new().prefix("mount-tensors-test-").tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let id = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let (sender, receiver) = mpsc::channel::<()>();
        let (watched, mark) = (root.clone(), id.clone());
        let watchdog = thread::spawn(move || {
            if receiver.recv_timeout(WATCHDOG) == Err(mpsc::RecvTimeoutError::Timeout) {
                skipped(&format!("watchdog: {} is cut off after {WATCHDOG:?}", watched.display()));
                cut_off(&watched, &mark);
            }
        });
        Self { dir: Some(dir), root, id, watchdog: Some((sender, watchdog)) }
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The program under test, in an environment of its own.
    pub(crate) fn program(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        self.mark(&mut command);
        command
    }

    /// Lets a command's servers be known as this place's.
    pub(crate) fn mark(&self, command: &mut Command) {
        command.env(MARK, &self.id).env_remove("RUST_LOG").env("LC_ALL", "C");
    }

    /// The servers that run now.
    pub(crate) fn servers(&self) -> Vec<i32> {
        servers(&self.id)
    }

    /// The one server that runs.
    #[track_caller]
    pub(crate) fn server(&self) -> i32 {
        let servers = self.servers();
        assert_eq!(servers.len(), 1, "servers: {servers:?}");
        servers[0]
    }

    /// What is mounted in it.
    pub(crate) fn mounts(&self) -> Vec<Line> {
        mounts().into_iter().filter(|m| m.point.starts_with(&self.root)).collect()
    }

    /// Waits until nothing is mounted and no server runs.
    #[track_caller]
    pub(crate) fn all_over(&self) {
        eventually("every mount and server of the test is gone", Duration::from_secs(15), || self.mounts().is_empty() && self.servers().is_empty());
    }

    /// Unmounts with `-u`, which must be silent and good.
    #[track_caller]
    pub(crate) fn unmount(&self, point: impl AsRef<OsStr>) {
        until_not_busy(self.program().arg("-u").arg(point));
    }

    /// A fixture copied here, a file or a folder, under the name given.
    pub(crate) fn copy(&self, from: &str, name: impl AsRef<Path>) -> PathBuf {
        let to = self.path(name);
        copy_all(&fixture(from), &to);
        to
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for mount in self.mounts().iter().rev() {
            posix::detach(&mount.point);
        }
        let started = Instant::now();
        while !self.servers().is_empty() && started.elapsed() < Duration::from_secs(5) {
            thread::sleep(Duration::from_millis(5));
        }
        cut_off(&self.root, &self.id);
        if let Some((stop, watchdog)) = self.watchdog.take() {
            drop(stop);
            let _ = watchdog.join();
        }
        drop(self.dir.take());
    }
}

/// Ends what does not end by itself: aborts the connections to the kernel, kills the servers, detaches the mounts.
fn cut_off(root: &Path, id: &str) {
    for mount in mounts().iter().rev().filter(|m| m.point.starts_with(root)) {
        let _ = fs::write(format!("/sys/fs/fuse/connections/{}/abort", mount.connection), "1");
        posix::detach(&mount.point);
    }
    for server in servers(id) {
        posix::kill(server, libc::SIGKILL);
    }
}

fn servers(id: &str) -> Vec<i32> {
    let mark = format!("{MARK}={id}");
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let ours = |pid: &i32| {
        fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.file_name() == Path::new(PROGRAM).file_name())
            && fs::read(format!("/proc/{pid}/environ")).is_ok_and(|env| env.split(|b| *b == 0).any(|v| v == mark.as_bytes()))
    };
    processes.filter(ours).collect()
}

fn copy_all(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let name = entry.unwrap().file_name();
            copy_all(&from.join(&name), &to.join(&name));
        }
    } else {
        fs::copy(from, to).unwrap();
    }
}

/// A place with one mount in it.
pub(crate) struct Mounted {
    pub(crate) place: Place,
    pub(crate) point: PathBuf,
}

impl Mounted {
    #[track_caller]
    pub(crate) fn new(source: impl AsRef<OsStr>) -> Self {
        Self::with(source, &[])
    }

    #[track_caller]
    pub(crate) fn with(source: impl AsRef<OsStr>, options: &[&str]) -> Self {
        Self::at(Place::new(), source, options)
    }

    /// Mounts in the background at `mnt` of a place; the mount must be silent and good.
    #[track_caller]
    pub(crate) fn at(place: Place, source: impl AsRef<OsStr>, options: &[&str]) -> Self {
        let point = place.path("mnt");
        let done = run(place.program().args(options).arg("-q").arg(source).arg(&point));
        assert_eq!((done.code, done.err.as_str()), (Some(0), ""));
        Self { place, point }
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.join(name)
    }

    pub(crate) fn line(&self) -> Line {
        mounts().into_iter().rfind(|m| m.point == self.point).unwrap()
    }

    /// Unmounts with `-u`, which must be silent and good, and waits for the server to end.
    #[track_caller]
    pub(crate) fn unmount(self) {
        self.place.unmount(&self.point);
        self.place.all_over();
    }
}

/// Every path below a folder, relative to it, sorted; folders end in `/`.
pub(crate) fn walk(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(root.join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                pending.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Every file below a folder with its bytes.
pub(crate) fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = walk(root).into_iter().filter(|path| root.join(path).is_file());
    files.map(|path| (path.clone(), fs::read(root.join(&path)).unwrap_or_else(|e| panic!("{}: {e}", path.display())))).collect()
}

/// Fails with the first place where two byte strings differ, rather than with all of them.
#[track_caller]
pub(crate) fn assert_same(what: &str, found: &[u8], expected: &[u8]) {
    if found != expected {
        let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(found.len().min(expected.len()));
        let around = |bytes: &[u8]| String::from_utf8_lossy(&bytes[at.min(bytes.len())..bytes.len().min(at + 32)]).into_owned();
        panic!("{what}: {} bytes, expected {}; they differ at {at}: {:?}, expected {:?}", found.len(), expected.len(), around(found), around(expected));
    }
}

/// A file's whole text.
#[track_caller]
pub(crate) fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path.as_ref()).unwrap_or_else(|e| panic!("{}: {e}", path.as_ref().display()))
}

/// The errno of something that must fail.
#[track_caller]
pub(crate) fn errno<T>(result: std::io::Result<T>) -> i32 {
    result.err().expect("it must fail").raw_os_error().expect("an error of the system")
}

/// A number from /proc/PID/status, in bytes.
pub(crate) fn status_bytes(pid: i32, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Bytes as a path or an argument.
pub(crate) fn os(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}
