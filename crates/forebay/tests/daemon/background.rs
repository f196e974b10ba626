//! Background work of a daemon slows down while other programs wait for processors. The machine is
//! simulated by a folder with the kernel's files.

use crate::common::client::PATIENCE;
use crate::common::wait_until;
use crate::memory_limits::machine;
use crate::process::{Daemon, on_one_line};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The figures of a machine on which programs wait for processors all the time.
struct Pressure<'a> {
    machine: &'a Path,
    is_over: AtomicBool,
}

impl Pressure<'_> {
    fn write(&self, total_us: u64) {
        let file = self.machine.join("proc/pressure/cpu");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let new = file.with_extension("new");
        std::fs::write(&new, format!("some avg10=0.00 total={total_us}\nfull total=0\n")).unwrap();
        std::fs::rename(new, file).unwrap();
    }

    /// The time in which some task waited grows faster than the clock, so that each sample finds
    /// pressure, whenever it is taken.
    fn rise(&self) {
        let mut total_us = 1;
        while !self.is_over.load(Ordering::Relaxed) {
            total_us += 1_000_000_000;
            self.write(total_us);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

fn background(daemon: &Daemon, field: &str) -> serde_json::Value {
    daemon.status()["background"][field].clone()
}

fn wait_for(daemon: &Daemon, share: &str) {
    wait_until(share, PATIENCE, || background(daemon, "processors") == share);
}

fn set(daemon: &Daemon, mode: &str) {
    let (code, text) = daemon.run(&["set", &format!("background={mode}")]);
    assert_eq!((code, text), (Some(0), format!("background work is set to {mode}\n")));
}

#[test]
fn background_work_slows_down_while_others_wait_and_resumes() {
    let (machine, directory) = (machine(), tempfile::tempdir().unwrap());
    let pressure = Pressure { machine: machine.path(), is_over: AtomicBool::new(false) };
    pressure.write(1);
    let daemon = Daemon::start_on(machine.path(), directory.path(), "64MiB", &[]);
    assert_eq!(background(&daemon, "setting"), "full");
    set(&daemon, "auto");
    wait_until("a sample", PATIENCE, || background(&daemon, "processors_pressure") == 0.0);
    assert_eq!(background(&daemon, "processors"), "full");
    std::thread::scope(|scope| {
        let rising = scope.spawn(|| pressure.rise());
        wait_for(&daemon, "least");
        assert_eq!(background(&daemon, "processors_pressure"), 100.0);
        assert_eq!(background(&daemon, "disks"), "full");
        let reason = "other programs wait for processors 100 % of the time";
        assert_eq!(background(&daemon, "reason"), reason);
        let text = on_one_line(&daemon.run(&["status"]).1);
        assert!(text.contains(&format!("background work least; {reason} ")), "{text}");
        // It can be turned off, and on again.
        set(&daemon, "full");
        assert_eq!(background(&daemon, "processors"), "full");
        assert_eq!(background(&daemon, "reason"), "it is set to full");
        set(&daemon, "auto");
        wait_for(&daemon, "least");
        pressure.is_over.store(true, Ordering::Relaxed);
        rising.join().unwrap();
    });
    wait_for(&daemon, "full");
    assert!(!daemon.run(&["status"]).1.contains("background work"));
    daemon.wait_for_log("background work slows down");
    daemon.wait_for_log("background work is at full speed again");
    daemon.stop();
}
