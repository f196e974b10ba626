//! The monitor with a vault that cannot be written.

use super::*;
use forebay_frontend_nbd::NbdServer;
use forebay_runtime::{Ecc, Engine, RuntimeConfig};
use std::io::{Read, Seek};
use std::sync::atomic::AtomicU64;

/// A vault that can neither take a dump nor be emptied until it is repaired.
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
        anyhow::ensure!(self.is_repaired.load(Ordering::Relaxed), "input/output error");
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
        start_bytes: 64 << 20,
        workers: 1,
        engine: Engine::Epoll,
        journals: 0,
        ecc: Ecc::Off,
    };
    let runtime = Arc::new(Runtime::start(config, &NbdServer::new()).unwrap());
    let means = Means {
        saves: Saves::new(Arc::clone(&runtime)),
        runtime,
        dump_target: Some(Arc::clone(vault) as _),
        batteries: Batteries::open("/nonexistent/batteries.json".into()),
    };
    let monitor = MonitorThread::new(
        PowerController::new(Expression::parse("a").unwrap(), Rules::default()),
        "a".to_owned(),
        Vec::new(),
        mpsc::channel().1,
        means,
        Duration::ZERO,
    );
    MonitorThread { dump: Dump::Complete, ..monitor }
}

/// Updates the dump as if the pause after a failed attempt were over.
fn update_after_pause(monitor: &mut MonitorThread, decision: &PowerDecision) {
    if let Dump::Failed { retry_at, .. } = &mut monitor.dump {
        *retry_at = Instant::now();
    }
    monitor.update_dump(decision);
}

/// What `call` logs on this thread.
fn log_of(call: impl FnOnce()) -> String {
    let mut file = tempfile::tempfile().unwrap();
    let writer = file.try_clone().unwrap();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
    tracing::subscriber::with_default(subscriber, call);
    let mut log = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut log).unwrap();
    log
}

#[test]
fn a_failure_is_logged_once_however_often_the_dump_is_repeated() {
    let vault = Arc::new(BrokenVault::default());
    let mut monitor = monitor_after_dump(&vault);
    monitor.dump = Dump::None;
    let decision = monitor.controller.decide(now_ms(), &Exposure::default());
    let decision = PowerDecision { dump_now: true, ..decision };
    let log = log_of(|| (0..3).for_each(|_| update_after_pause(&mut monitor, &decision)));
    for line in ["writes halted, dumping dirty data", "dump failed, dirty data is not protected"] {
        assert_eq!(log.matches(line).count(), 1, "{log}");
    }

    vault.is_repaired.store(true, Ordering::Relaxed);
    let log = log_of(|| update_after_pause(&mut monitor, &decision));
    assert!(log.contains("dump complete and verified") && !log.contains("halted"), "{log}");
    assert!(matches!(monitor.dump, Dump::Complete));
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
    assert!(matches!(monitor.dump, Dump::Failed { .. }));

    let before = attempts();
    update_after_pause(&mut monitor, &decision);
    assert_eq!(attempts(), before + 1, "the pause is over");
    assert!(matches!(monitor.dump, Dump::Failed { .. }));

    vault.is_repaired.store(true, Ordering::Relaxed);
    update_after_pause(&mut monitor, &decision);
    assert!(matches!(monitor.dump, Dump::None), "writes are accepted again");
    monitor.update_dump(&decision);
    assert_eq!(attempts(), before + 2, "an empty vault is left alone");
}
