//! The monitor with a vault that cannot be emptied.

use super::*;
use forebay_frontend_nbd::NbdServer;
use forebay_runtime::{Ecc, Engine, RuntimeConfig};
use std::sync::atomic::AtomicU64;

/// A vault that cannot be emptied until it is repaired.
#[derive(Default)]
struct BrokenVault {
    attempts: AtomicU64,
    is_repaired: AtomicBool,
}

impl DumpTarget for BrokenVault {
    fn bytes_per_second(&self) -> Option<u64> {
        None
    }

    fn dump(&self, _: &[VolumeId]) -> anyhow::Result<DumpReport> {
        Ok(DumpReport::default())
    }

    fn set_on_battery(&self, _: bool) {}

    fn empty(&self) -> anyhow::Result<()> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        anyhow::ensure!(self.is_repaired.load(Ordering::Relaxed), "input/output error");
        Ok(())
    }
}

/// A monitor that has made a dump, for a server without volumes.
fn monitor_after_dump(vault: &Arc<BrokenVault>) -> MonitorThread {
    let config = RuntimeConfig {
        memory_bytes: 64 << 20,
        workers: 1,
        engine: Engine::Epoll,
        journals: 0,
        ecc: Ecc::Off,
    };
    MonitorThread {
        controller: PowerController::new(Expression::parse("a").unwrap(), Rules::default()),
        upses: Vec::new(),
        needed: "a".to_owned(),
        pollers: Vec::new(),
        observations: mpsc::channel().1,
        runtime: Arc::new(Runtime::start(config, &NbdServer::new()).unwrap()),
        dump_target: Some(Arc::clone(vault) as _),
        batteries: Batteries::open("/nonexistent/batteries.json".into()),
        shared: Arc::new(Shared { status: Mutex::default(), stopping: AtomicBool::new(false) }),
        dirty_bytes: 0,
        allowed: false,
        changes: 0,
        changed_at: Instant::now(),
        change_ms: None,
        synced_at: Instant::now(),
        dump: Dump::Complete,
        on_battery: false,
    }
}

#[test]
fn emptying_a_vault_that_fails_is_tried_once_a_second_and_writes_stay_halted() {
    let vault = Arc::new(BrokenVault::default());
    let attempts = || vault.attempts.load(Ordering::Relaxed);
    let mut monitor = monitor_after_dump(&vault);
    let decision = monitor.controller.decide(now_ms(), &Exposure::default());
    assert!(!decision.dump_now);
    // As many decisions as in one second.
    let begun = Instant::now();
    for _ in 0..50 {
        monitor.update_dump(&decision);
    }
    let attempts_max = 1 + begun.elapsed().as_secs();
    assert!((1..=attempts_max).contains(&attempts()), "{} attempts", attempts());
    assert!(matches!(monitor.dump, Dump::Failed(_)));

    let before = attempts();
    monitor.dump = Dump::Failed(Instant::now());
    monitor.update_dump(&decision);
    assert_eq!(attempts(), before + 1, "the pause is over");
    assert!(matches!(monitor.dump, Dump::Failed(_)));

    vault.is_repaired.store(true, Ordering::Relaxed);
    monitor.dump = Dump::Failed(Instant::now());
    monitor.update_dump(&decision);
    assert!(matches!(monitor.dump, Dump::None), "writes are accepted again");
    monitor.update_dump(&decision);
    assert_eq!(attempts(), before + 2, "an empty vault is left alone");
}
