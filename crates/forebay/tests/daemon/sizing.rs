//! The memory of a running daemon follows the machine and its control groups, and the settings.

use crate::common::client::PATIENCE;
use crate::common::random::Random;
use crate::common::wait_until;
use crate::memory_limits::{container, machine, set_memory};
use crate::process::{Daemon, MIB, make_file, on_one_line};
use crate::resize::{memory, set};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Runs `forebay set`, and returns the message of the refusal.
fn refused(daemon: &Daemon, setting: &str) -> String {
    let (code, text) = daemon.run(&["set", setting]);
    assert_eq!(code, Some(1), "{text}");
    text.trim_end().to_owned()
}

fn sizing(daemon: &Daemon, field: &str) -> serde_json::Value {
    daemon.status()["memory"]["sizing"][field].clone()
}

/// Waits until the limit has this value.
fn wait_for_limit(daemon: &Daemon, bytes: u64) {
    wait_until(&format!("the limit is {bytes}"), PATIENCE, || {
        memory(daemon, "limit_bytes") == bytes
    });
}

#[test]
fn a_shortage_of_memory_shrinks_the_cache_to_its_minimum() {
    let (machine, directory) = (machine(), tempfile::tempdir().unwrap());
    let daemon = Daemon::start_on(machine.path(), directory.path(), "256MiB", &[]);
    let least = memory(&daemon, "limit_bytes_min");
    assert_eq!(memory(&daemon, "limit_bytes"), 256 * MIB);
    // This machine always lacks 100 MiB, whatever the cache gives back.
    set_memory(machine.path(), 8192, 400);
    wait_for_limit(&daemon, least);
    wait_until("the reason is shown", PATIENCE, || sizing(&daemon, "state") == "short");
    wait_until("the pool is small", PATIENCE, || memory(&daemon, "pool_bytes") < 32 * MIB);
    assert_eq!(sizing(&daemon, "wanted_bytes"), 256 * MIB);
    assert_eq!(sizing(&daemon, "available_bytes"), 400 * MIB);
    assert_eq!(sizing(&daemon, "reserve_bytes"), 500 * MIB);
    // For two seconds, memory that is being given back counts as available.
    let field = "memory size 256MiB, 256 MiB with enough memory; memory is short";
    wait_until("the status says so", PATIENCE, || {
        let text = on_one_line(&daemon.run(&["status", "--all"]).1);
        text.contains(field) && text.contains("warning memory: memory is short")
    });
    for event in ["memory is short, the cache shrinks", "the cache is at its minimum"] {
        daemon.wait_for_log_times(event, 1);
    }
    // A smaller size can be set, and is wanted from now on.
    set(&daemon, least);
    wait_until("it is wanted", PATIENCE, || sizing(&daemon, "wanted_bytes") == least);
    daemon.stop();
}

#[test]
fn a_limit_lowered_below_the_cache_shrinks_it_to_the_minimum_that_was_set() {
    let (container, directory) = (container(4096, 100), tempfile::tempdir().unwrap());
    let minimum = &["--memory-min", "128MiB"];
    let daemon = Daemon::start_on(container.path(), directory.path(), "256MiB", minimum);
    let group = container.path().join("sys/fs/cgroup/user.slice/x");
    std::fs::write(group.join("memory.max"), format!("{}\n", 120 * MIB)).unwrap();
    let at_least = |bytes: u64| {
        wait_until(&format!("the limit is about {bytes}"), PATIENCE, || {
            (bytes - 16 * MIB..=bytes).contains(&memory(&daemon, "limit_bytes"))
        });
    };
    at_least(128 * MIB);
    daemon.wait_for_log("limited_by=\"/user.slice/x\"");
    assert_eq!(sizing(&daemon, "limited_by"), "/user.slice/x");
    let (code, text) = daemon.run(&["set", "memory-min=96MiB"]);
    assert_eq!(code, Some(0), "{text}");
    at_least(96 * MIB);
    // The group has memory again, but the cache waits.
    std::fs::write(group.join("memory.max"), format!("{}\n", 1000 * MIB)).unwrap();
    wait_until("memory is free", PATIENCE, || sizing(&daemon, "state") == "recovering");
    daemon.stop();
}

#[test]
fn a_control_group_at_its_limit_and_programs_that_wait_shrink_the_cache() {
    for (file, text) in [
        ("sys/fs/cgroup/user.slice/x/inner/memory.events", "low 0\nhigh 9\nmax 0\noom 0\n"),
        ("proc/pressure/memory", "some avg10=9.00 total=900000000\nfull total=0\n"),
    ] {
        // 700 MiB are available: enough, if nothing else says that memory is short.
        let (container, directory) = (container(4096, 3396), tempfile::tempdir().unwrap());
        let path = container.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "some avg10=0.00 total=0\nhigh 0\n").unwrap();
        let daemon = Daemon::start_on(container.path(), directory.path(), "192MiB", &[]);
        wait_until("memory is enough", PATIENCE, || sizing(&daemon, "state") == "steady");
        assert_eq!(memory(&daemon, "limit_bytes"), 192 * MIB);
        std::fs::write(&path, text).unwrap();
        wait_until(file, PATIENCE, || memory(&daemon, "limit_bytes") < 192 * MIB);
        daemon.wait_for_log_times("memory is short, the cache shrinks", 1);
        daemon.stop();
    }
}

#[test]
fn settings_of_the_memory_that_contradict_one_another_are_refused() {
    let (machine, directory) = (machine(), tempfile::tempdir().unwrap());
    let minimum = &["--memory-min", "128MiB"];
    let daemon = Daemon::start_on(machine.path(), directory.path(), "256MiB", minimum);
    assert_eq!(
        refused(&daemon, "memory=100MiB"),
        "forebay: memory 100MiB is less than the 128MiB of memory-min: set memory to 128MiB or \
         memory-min to 100MiB"
    );
    assert_eq!(
        refused(&daemon, "memory-min=257MiB"),
        "forebay: memory 256MiB is less than the 257MiB of memory-min: set memory to 257MiB or \
         memory-min to 256MiB"
    );
    let (code, text) = daemon.run(&["set", "memory=auto"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(
        refused(&daemon, "memory-min=257MiB"),
        "forebay: memory-min 257MiB exceeds the maximum of 256MiB, which is fixed at the start: \
         set memory-min to 256MiB or less, or restart the server with more"
    );
    assert_eq!(memory(&daemon, "limit_bytes"), 256 * MIB);
    daemon.stop();
}

#[test]
fn a_reload_applies_changed_settings_of_the_memory() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("forebay.toml");
    let configure = |text: &str| std::fs::write(&file, text).unwrap();
    configure("memory = '192MiB'\n");
    let daemon = Daemon::start_configured(directory.path(), &file);
    set(&daemon, 128 * MIB);
    let near = |bytes: u64| {
        wait_until(&format!("the limit is about {bytes}"), PATIENCE, || {
            (bytes - 16 * MIB..=bytes).contains(&memory(&daemon, "limit_bytes"))
        });
    };
    // What has not changed in the file does not override the command.
    configure("memory = '192MiB'\nmemory-min = '96MiB'\n");
    daemon.signal(Signal::HUP);
    wait_until("the minimum", PATIENCE, || {
        let min_bytes = sizing(&daemon, "min_bytes").as_u64();
        min_bytes.is_some_and(|bytes| (80 * MIB..=96 * MIB).contains(&bytes))
    });
    near(128 * MIB);
    configure("memory = '160MiB'\n");
    daemon.signal(Signal::HUP);
    near(160 * MIB);
    // It cannot exceed the size of the start; the next reload tries again.
    configure("memory = '400MiB'\n");
    for times in 1..=2 {
        daemon.signal(Signal::HUP);
        let refusal = "memory 400MiB exceeds the maximum of 192MiB, which is fixed at the start";
        daemon.wait_for_log_times(refusal, times);
    }
    near(160 * MIB);
    daemon.stop();
}

/// Sets the time since the boot of a machine.
fn set_uptime(machine: &Path, seconds: u64) {
    let new = machine.join("proc/uptime.new");
    std::fs::write(&new, format!("{seconds}.00 9.00\n")).unwrap();
    std::fs::rename(new, machine.join("proc/uptime")).unwrap();
}

#[test]
fn the_cache_grows_again_when_memory_has_been_free_for_a_while() {
    let (machine, directory) = (machine(), tempfile::tempdir().unwrap());
    set_uptime(machine.path(), 1_000);
    let daemon = Daemon::start_on(machine.path(), directory.path(), "256MiB", &[]);
    set_memory(machine.path(), 8192, 400);
    let least = memory(&daemon, "limit_bytes_min");
    wait_for_limit(&daemon, least);
    set_memory(machine.path(), 8192, 6144);
    wait_until("the wait begins", PATIENCE, || sizing(&daemon, "state") == "recovering");
    let left = |seconds: u64| format!("the cache grows if memory stays free for {seconds} s");
    let is_left = |seconds| sizing(&daemon, "reason").as_str().unwrap().ends_with(&left(seconds));
    assert!(is_left(30), "{}", sizing(&daemon, "reason"));
    set_uptime(machine.path(), 1_029);
    wait_until("a second is left", PATIENCE, || is_left(1));
    assert_eq!(memory(&daemon, "limit_bytes"), least);
    set_uptime(machine.path(), 1_030);
    wait_for_limit(&daemon, 256 * MIB);
    wait_until("it is as before", PATIENCE, || sizing(&daemon, "state") == "steady");
    daemon.wait_for_log_times("cache grows", 1);
    daemon.stop();
}

/// Reads a volume of `mib` at random places, four times its size in all: the miniatures sample few
/// lines, and say something from 1,000 accesses to these on.
fn read_at_random(daemon: &Daemon, mib: u64) {
    const BYTES: u64 = 64 << 10;
    let (mut client, mut random) = (daemon.client("disk"), Random::new(mib));
    for _ in 0..4 * mib * MIB / BYTES {
        client.read(random.below(mib * MIB / BYTES) * BYTES, BYTES).unwrap();
    }
}

/// A server that chooses its memory on a machine with 1100 MiB available, with a volume.
fn start_auto(machine: &Path, directory: &Path, mib: u64) -> Daemon {
    set_memory(machine, 8192, 1100);
    set_uptime(machine, 1_000);
    make_file(directory.join("disk.img"), mib * MIB);
    let volume = format!("disk={}", directory.join("disk.img").display());
    let daemon = Daemon::start_on(machine, directory, "auto", &["--volume", &volume]);
    wait_until("a first decision", PATIENCE, || sizing(&daemon, "state") == "steady");
    assert_eq!(memory(&daemon, "limit_bytes_max"), 550 * MIB, "half of the machine");
    let limit = memory(&daemon, "limit_bytes");
    assert!((121 * MIB..=137 * MIB).contains(&limit), "an eighth of the machine: {limit}");
    daemon
}

#[test]
fn memory_that_brings_hits_is_taken_step_by_step() {
    let (machine, directory) = (machine(), tempfile::tempdir().unwrap());
    let daemon = start_auto(machine.path(), directory.path(), 300);
    let start = memory(&daemon, "limit_bytes");
    read_at_random(&daemon, 300);
    set_uptime(machine.path(), 1_060);
    wait_until("the cache is to grow", PATIENCE, || {
        sizing(&daemon, "wanted_bytes").as_u64() > Some(start)
    });
    daemon.wait_for_log("more memory would bring hits");
    set_uptime(machine.path(), 1_095);
    wait_until("it has grown", PATIENCE, || memory(&daemon, "limit_bytes") > start);
    let grown = memory(&daemon, "limit_bytes");
    assert!(grown <= start + 32 * MIB, "{grown} after {start}");
    // A lower maximum applies at once.
    let (code, text) = daemon.run(&["set", "memory-max=100MiB"]);
    assert!(code == Some(0) && memory(&daemon, "limit_bytes") <= 100 * MIB, "{text}");
    let text = "forebay: memory-max 551MiB exceeds the maximum of 550MiB, which is fixed at the \
                start: set memory-max to 550MiB or less, or restart the server with more";
    assert_eq!(refused(&daemon, "memory-max=551MiB"), text);
    daemon.stop();
}

#[test]
fn memory_that_brings_nothing_is_not_taken() {
    let (machine, directory) = (machine(), tempfile::tempdir().unwrap());
    let daemon = start_auto(machine.path(), directory.path(), 16);
    let start = memory(&daemon, "limit_bytes");
    read_at_random(&daemon, 16);
    set_uptime(machine.path(), 1_060);
    let reason = "there is enough memory for this size; the cache does not use all of it";
    wait_until("it is decided", PATIENCE, || sizing(&daemon, "reason") == reason);
    assert_eq!(
        (memory(&daemon, "limit_bytes"), &sizing(&daemon, "memory")),
        (start, &"auto".into())
    );
    daemon.stop();
}

#[test]
fn beside_a_vault_the_size_at_the_start_is_the_maximum() {
    let (machine, directory) = (machine(), tempfile::tempdir().unwrap());
    set_memory(machine.path(), 8192, 1100);
    let vault = directory.path().join("vault").display().to_string();
    let daemon = Daemon::start_on(machine.path(), directory.path(), "auto", &["--vault", &vault]);
    assert_eq!(memory(&daemon, "limit_bytes_max"), 137 * MIB);
    assert_eq!(memory(&daemon, "limit_bytes"), 137 * MIB);
    daemon.stop();
}

#[test]
fn a_set_size_can_be_left_to_the_server_again() {
    let (machine, directory) = (machine(), tempfile::tempdir().unwrap());
    let daemon = Daemon::start_on(machine.path(), directory.path(), "256MiB", &[]);
    set(&daemon, 128 * MIB);
    let before = memory(&daemon, "limit_bytes");
    let (code, text) = daemon.run(&["set", "memory=auto"]);
    assert_eq!(code, Some(0), "{text}");
    wait_until("it is decided", PATIENCE, || sizing(&daemon, "memory") == "auto");
    assert_eq!(memory(&daemon, "limit_bytes"), before, "it grows when that pays");
    assert_eq!(sizing(&daemon, "max_bytes"), 256 * MIB);
    daemon.stop();
}

/// A control group of this machine with a memory limit, at the top of its hierarchy.
struct RealGroup {
    directory: PathBuf,
    usage: &'static str,
}

impl RealGroup {
    fn new(limit_bytes: u64) -> Self {
        let name = format!("forebay-test-{}", std::process::id());
        let old = Path::new("/sys/fs/cgroup/memory");
        let (root, limit, usage) = match old.is_dir() {
            true => (old, "memory.limit_in_bytes", "memory.usage_in_bytes"),
            false => (Path::new("/sys/fs/cgroup"), "memory.max", "memory.current"),
        };
        let directory = root.join(name);
        std::fs::create_dir(&directory).expect("root, and control groups");
        let group = Self { directory, usage };
        group.write(limit, limit_bytes);
        group
    }

    fn write(&self, file: &str, number: u64) {
        std::fs::write(self.directory.join(file), number.to_string()).unwrap();
    }

    fn usage_bytes(&self) -> u64 {
        let text = std::fs::read_to_string(self.directory.join(self.usage)).unwrap();
        text.trim().parse().unwrap()
    }

    /// Starts a program in the group that takes this much memory and holds it, because it waits for
    /// a reader of its output.
    fn take(&self, mib: u64) -> Child {
        let procs = self.directory.join("cgroup.procs");
        let script = format!(
            "echo $$ > {} && exec dd if=/dev/zero bs={mib}M count=1 iflag=fullblock",
            procs.display()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        wait_until("the program has its memory", PATIENCE, || {
            assert_eq!(child.try_wait().unwrap(), None, "the program was killed");
            rss_bytes(&child) > (mib - 1) * MIB
        });
        child
    }
}

impl Drop for RealGroup {
    fn drop(&mut self) {
        // The kernel removes exited processes from the group in the background.
        let removed = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            std::fs::remove_dir(&self.directory).is_ok()
        });
        if !removed {
            eprintln!("{} is left", self.directory.display());
        }
    }
}

#[test]
#[ignore = "needs root, and control groups with a memory controller"]
fn tool_a_hog_in_a_real_control_group_gets_the_memory_of_the_cache() {
    let (group, directory) = (RealGroup::new(512 * MIB), tempfile::tempdir().unwrap());
    let disk = directory.path().join("disk.img");
    make_file(&disk, 256 * MIB);
    let reserve = &["--memory-reserve", "100MiB", "--keeper", "no"];
    let volumes = &[format!("disk={}", disk.display())];
    let daemon =
        Daemon::start_in_group(&group.directory, directory.path(), "300MiB", volumes, reserve);
    let mut client = daemon.client("disk");
    for mib in 0..256 {
        client.read(mib * MIB, MIB).unwrap();
    }
    let (used, full) = (memory(&daemon, "used_bytes"), group.usage_bytes());
    assert!(used > 200 * MIB && full > used, "{used} bytes cached, {full} in the group");
    // In pieces that fit the reserve: how fast the cache must be is not tested here.
    let hogs = (0..11).map(|_| {
        let hog = group.take(20);
        // The reserve, without its margin.
        wait_until("the reserve is free", PATIENCE, || group.usage_bytes() < (512 - 75) * MIB);
        assert_eq!(client.read(0, 4096).unwrap(), [0; 4096], "the cache serves all the while");
        hog
    });
    for mut hog in hogs.collect::<Vec<_>>() {
        assert_eq!(hog.try_wait().unwrap(), None, "a program was killed");
        hog.kill().unwrap();
        hog.wait().unwrap();
    }
    // How far depends on the moment of the measurement; the pool shrinks by whole slabs.
    assert!(memory(&daemon, "limit_bytes") < 300 * MIB);
    wait_until("memory has left the group", PATIENCE, || group.usage_bytes() < full - 60 * MIB);
    daemon.wait_for_log("limited_by=\"/forebay-test-");
    drop(client);
    daemon.stop();
}

/// The memory of a process in bytes.
fn rss_bytes(child: &Child) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{}/statm", child.id())).unwrap_or_default();
    statm.split(' ').nth(1).map_or(0, |pages| pages.parse::<u64>().unwrap()) * 4096
}
