//! How much memory may be taken without anything else having to give way: of the machine, and of every control group that this process is in.
//!
//! Pages of a tmpfs cannot be reclaimed, and what goes past a group's limit has its members killed. So whoever fills one asks here first.

use std::path::{Path, PathBuf};

/// Where the figures stand.
pub struct Memory {
    proc: PathBuf,
    /// The folders of the groups, the innermost first, and whether they are of version 1.
    groups: Vec<(PathBuf, bool)>,
}

/// The figures of one moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// What the machine has free or can free.
    pub available: u64,
    /// All memory of the machine.
    pub total: u64,
    /// What the tightest group still lets its members take; `u64::MAX` without a limit.
    pub group: u64,
    /// The lowest limit of a group; `u64::MAX` without one.
    pub limit: u64,
}

impl Headroom {
    /// What may be taken by this program for speed alone: a quarter of what is available, half of what the groups leave.
    pub fn share(self) -> u64 {
        (self.available / 4).min(self.group / 2)
    }

    /// Whether memory is so short that what was taken for speed must be given back: less than a tenth is left.
    pub fn is_short(self) -> bool {
        self.available < self.total / 10 || (self.limit != u64::MAX && self.group < self.limit / 10)
    }
}

impl Memory {
    /// Finds the groups of this process.
    pub fn new() -> Self {
        Self::under(Path::new("/proc"))
    }

    fn under(proc: &Path) -> Self {
        let own = std::fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
        let mounts = std::fs::read_to_string(proc.join("self/mountinfo")).unwrap_or_default();
        let mut groups = Vec::new();
        for line in own.lines() {
            // hierarchy:controllers:path, cgroups(7); hierarchy 0 without controllers is version 2
            let mut parts = line.splitn(3, ':');
            let (Some(hierarchy), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
            let first = controllers.split(',').any(|c| c == "memory");
            let second = hierarchy == "0" && controllers.is_empty();
            if !first && !second {
                continue;
            }
            let Some((root, point)) = mounts.lines().find_map(|line| mount_of(line, first)) else { continue };
            // In a container the mount shows a part of the tree only.
            let below = Path::new(path).strip_prefix(&root).unwrap_or(Path::new("")).to_path_buf();
            let folders: Vec<PathBuf> = below.ancestors().map(|below| point.join(below)).collect();
            groups.extend(folders.into_iter().map(|folder| (folder, first)));
        }
        Self { proc: proc.to_path_buf(), groups }
    }

    /// The figures as they are now.
    pub fn headroom(&self) -> Headroom {
        let info = std::fs::read_to_string(self.proc.join("meminfo")).unwrap_or_default();
        let kib = |key: &str| info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        let bytes = |key: &str| kib(key).unwrap_or(0).saturating_mul(1024);
        let mut headroom = Headroom { available: bytes("MemAvailable"), total: bytes("MemTotal"), group: u64::MAX, limit: u64::MAX };
        for (folder, first) in &self.groups {
            let names = if *first {
                ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"]
            } else {
                ["memory.max", "memory.current", "inactive_file"]
            };
            let text = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
            let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
            // Without a limit the file says "max", or in version 1 a number beyond all memory.
            let (Some(limit), Some(used)) = (number(names[0]).filter(|limit| *limit < 1 << 60), number(names[1])) else { continue };
            // Cached file pages that nobody uses give way.
            let stat = text("memory.stat").unwrap_or_default();
            let yielding = stat.lines().find_map(|line| line.strip_prefix(names[2])?.trim().parse::<u64>().ok()).unwrap_or(0);
            headroom.limit = headroom.limit.min(limit);
            headroom.group = headroom.group.min(limit.saturating_sub(used.saturating_sub(yielding)));
        }
        headroom
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

/// Root and mount point of the hierarchy that counts memory, if this line of mountinfo is its mount.
fn mount_of(line: &str, first: bool) -> Option<(PathBuf, PathBuf)> {
    let (left, right) = line.split_once(" - ")?;
    let mut fields = left.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    let mut kind = right.split(' ');
    let is_it = match kind.next()? {
        "cgroup" => first && kind.nth(1)?.split(',').any(|option| option == "memory"),
        "cgroup2" => !first,
        _ => false,
    };
    is_it.then(|| (PathBuf::from(root), PathBuf::from(point)))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn machine(cgroup: &str, mountinfo: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("meminfo"), "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:    8000 kB\n");
        write(&folder.path().join("self/cgroup"), cgroup);
        write(&folder.path().join("self/mountinfo"), &mountinfo.replace("ROOT", folder.path().to_str().unwrap()));
        folder
    }

    const KIB: u64 = 1024;

    #[test]
    fn without_groups_the_machine_counts() {
        let folder = machine("", "");
        let headroom = Memory::under(folder.path()).headroom();
        assert_eq!(headroom, Headroom { available: 8000 * KIB, total: 16000 * KIB, group: u64::MAX, limit: u64::MAX });
        assert_eq!(headroom.share(), 2000 * KIB);
        assert!(!headroom.is_short());
    }

    #[test]
    fn the_tightest_ancestor_of_version_2_counts() {
        let folder = machine("0::/a/b\n", "30 20 0:28 / ROOT/cg rw,relatime shared:9 - cgroup2 cgroup2 rw\n");
        write(&folder.path().join("cg/a/memory.max"), "1000\n");
        write(&folder.path().join("cg/a/memory.current"), "900\n");
        write(&folder.path().join("cg/a/memory.stat"), "anon 1\ninactive_file 300\nactive_file 5\n");
        write(&folder.path().join("cg/a/b/memory.max"), "max\n");
        write(&folder.path().join("cg/a/b/memory.current"), "900\n");
        let headroom = Memory::under(folder.path()).headroom();
        assert_eq!((headroom.group, headroom.limit, headroom.share()), (400, 1000, 200));
        assert!(!headroom.is_short());
        write(&folder.path().join("cg/a/memory.stat"), "inactive_file 0\n");
        write(&folder.path().join("cg/a/memory.current"), "1200\n");
        let headroom = Memory::under(folder.path()).headroom();
        assert_eq!(headroom.group, 0);
        assert!(headroom.is_short());
    }

    #[test]
    fn version_1_in_a_container_that_sees_its_own_part_only() {
        let mounts = "31 23 0:28 / ROOT rw - tmpfs tmpfs rw\n33 31 0:31 /docker/x ROOT/cpu rw - cgroup cgroup rw,cpu\n\
                      35 31 0:32 /docker/x ROOT/mem rw,relatime - cgroup cgroup rw,memory\n";
        let folder = machine("9:name=systemd:/\n4:memory:/docker/x\n0::/\n", mounts);
        write(&folder.path().join("mem/memory.limit_in_bytes"), "5000\n");
        write(&folder.path().join("mem/memory.usage_in_bytes"), "1000\n");
        let headroom = Memory::under(folder.path()).headroom();
        assert_eq!((headroom.group, headroom.limit), (4000, 5000));
        write(&folder.path().join("mem/memory.limit_in_bytes"), "9223372036854771712\n");
        assert_eq!(Memory::under(folder.path()).headroom().group, u64::MAX);
    }
}
