//! Statuses for tests of what is shown.

use forebay_api::{
    CacheRatio, Counters, CurveStatus, DiskUse, ForecastScore, ForecastStatus, GatherSource,
    GatherStatus, GeometrySource, GeometryStatus, GovernorStatus, JournalStatus, Latencies,
    LatencySummary, LearnState, LearnStatus, LogStatus, Memory, MemoryAdvice, MemoryOutlook,
    MemorySizing, Mode, PatrolStatus, PinState, PinStatus, PoolDivision, PowerStatus, SavedStatus,
    Status, UpsStatus, VaultStatus, VolumePart, VolumeState, VolumeStatus, WarmUpState,
    WarmUpStatus, WriteBackFigures,
};

/// The status with its alerts, as the server shows it.
pub(crate) fn with_alerts(status: Status) -> Status {
    Status { alerts: crate::alerts::alerts(&status), ..status }
}

/// A volume with write-back and a journal.
pub(crate) fn database() -> VolumeStatus {
    let summary = |count, mean_us: f64| LatencySummary {
        count,
        mean_us,
        p50_us: mean_us * 0.9,
        p99_us: mean_us * 3.0,
        p999_us: mean_us * 9.0,
        max_us: mean_us * 20.0,
    };
    VolumeStatus {
        name: "db".into(),
        backing: "/dev/sdb".into(),
        size_bytes: 1 << 40,
        mode: Mode::WriteBack,
        effective_mode: Mode::WriteBack,
        protection: "journal".into(),
        class: forebay_api::DurabilityClass::Local,
        journal: Some("/dev/nvme0n1p4".into()),
        durability: Some("ack".into()),
        prefetch: true,
        warm_up: WarmUpStatus {
            enabled: true,
            state: WarmUpState::Loaded,
            planned_bytes: 3 << 30,
            done_bytes: 3 << 30,
        },
        pins: PinStatus {
            state: PinState::Loading,
            pinned_bytes: 512 << 20,
            loaded_bytes: 256 << 20,
            ..PinStatus::default()
        },
        learn: LearnStatus {
            enabled: true,
            state: LearnState::Learning,
            observed_slots: 300,
            forecast: Some(ForecastStatus {
                slot: "Mon 09:15".into(),
                bytes: 48 << 20,
                ..ForecastStatus::default()
            }),
            score: Some(ForecastScore {
                slot: "Mon 09:00".into(),
                preloaded_bytes: 46 << 20,
                used_bytes: 44 << 20,
            }),
            ..LearnStatus::default()
        },
        geometry: GeometryStatus {
            stripe_bytes: 112 << 10,
            stripe_source: GeometrySource::Device,
            chunk_bytes: 16 << 10,
            chunk_source: GeometrySource::SetByHand,
            optimal_bytes: 112 << 10,
            rotational: Some(true),
            rotational_source: GeometrySource::Device,
            ..GeometryStatus::default()
        },
        write_back: WriteBackFigures {
            writes: 10_000,
            bytes: 1120 << 20,
            whole_stripes: 9_000,
            urgent: 400,
            normal: 9_600,
            waits: 2,
            mean_dirty_ms: 7_260,
            dirty_for_ms: 41_500,
            governor: GovernorStatus {
                read_latency: "idle".into(),
                idle_p99_us: Some(18_000),
                target_p99_us: Some(23_000),
                beside_p99_us: Some(21_000),
                bursts_per_second: Some(0.9),
                raised: 7,
                lowered: 3,
            },
            ..WriteBackFigures::default()
        },
        gather: GatherStatus {
            below_bytes: 8 << 20,
            source: GatherSource::Measured,
            measured_below_bytes: Some(8 << 20),
            fixed_us: Some(12_400.0),
            bytes_per_second: Some(120 << 20),
            not_measured: None,
        },
        cached_bytes: 18 << 30,
        dirty_bytes: 1288 << 20,
        curve: CurveStatus {
            outlook: Some(MemoryOutlook {
                share_bytes: 18 << 30,
                miss_ratio_half: 0.612,
                miss_ratio_now: 0.489,
                miss_ratio_twice: 0.203,
                advice: MemoryAdvice::More,
                reason: "49 % of accesses miss; twice the pool would miss 20 %".into(),
            }),
            ..CurveStatus::default()
        },
        counters: Counters {
            reads: 1_000_000,
            writes: 250_000,
            flushes: 1_200,
            read_bytes: 8 << 30,
            write_bytes: 1 << 30,
            read_hits: 900_000,
            read_misses: 100_000,
            deferred_writes: 240_000,
            backend_reads: 98_000,
            backend_writes: 20_000,
            backend_read_bytes: 800 << 20,
            backend_write_bytes: 1 << 30,
            saved_ios: 1_133_200,
            saved_bytes: 7395 << 20,
            admitted_bytes: 20 << 30,
            evicted_bytes: 2 << 30,
            prefetched_bytes: 1 << 30,
            prefetch_used_bytes: 960 << 20,
            preloaded_bytes: 3 << 30,
            preload_used_bytes: 2 << 30,
            preload_in_vain_bytes: 64 << 20,
            ..Counters::default()
        },
        latency: Latencies {
            read_hit: summary(900_000, 42.4),
            read_miss: summary(100_000, 8_400.0),
            write: summary(250_000, 412.8),
            write_memory: summary(240_000, 55.0),
            write_disk: summary(10_000, 9_000.0),
            disk_read: summary(98_000, 8_200.0),
            disk_write: summary(20_000, 11_500.0),
            ..Latencies::default()
        },
        disk: DiskUse { in_flight: 3, ..DiskUse::default() },
        settings: [("mode", "write-back"), ("journal", "/dev/nvme0n1p4"), ("ordered", "no")].into(),
        ..VolumeStatus::default()
    }
}

/// A server without problems.
pub(crate) fn healthy() -> Status {
    let images = VolumeStatus {
        name: "vm-images-of-the-development-department".into(),
        size_bytes: 8 << 40,
        mode: Mode::Bypass,
        effective_mode: Mode::Bypass,
        ..VolumeStatus::default()
    };
    let scratch = VolumeStatus {
        name: "scratch".into(),
        size_bytes: 64 << 30,
        cached_bytes: 512 << 20,
        saved: Some(SavedStatus {
            file: "/img".into(),
            age_seconds: Some(90),
            changed: true,
            ..SavedStatus::default()
        }),
        ..VolumeStatus::default()
    };
    Status {
        version: "0.1.0".into(),
        pid: 4242,
        uptime_seconds: 273_600,
        io_engine: "io_uring".into(),
        workers: 8,
        polled_ms: 95_000,
        memory: Memory {
            limit_bytes: 22 << 30,
            limit_bytes_max: 24 << 30,
            pool_bytes: 20 << 30,
            used_bytes: 18_944 << 20,
            dirty_bytes: 1288 << 20,
            metadata_bytes: 320 << 20,
            pinned_bytes: 512 << 20,
            pinned_bytes_max: 10 << 30,
            sizing: Some(MemorySizing {
                memory: "auto".into(),
                available_bytes: 30 << 30,
                reserve_bytes: 2 << 30,
                reason: "there is enough memory for this size".into(),
                ..MemorySizing::default()
            }),
            cache_ratio: Some(CacheRatio {
                setting: "auto".into(),
                read_percent: 33,
                write_percent: 67,
                write_bytes: 13 << 30,
                reason: "by default, two thirds are for writes".into(),
            }),
            ..Memory::default()
        },
        division: Some(PoolDivision {
            gain: Some(0.009),
            reason: "one eviction policy over all lines divides the pool".into(),
            volumes: vec![
                VolumePart {
                    name: "db".into(),
                    lines: 4_718_592,
                    part: 0.973,
                    part_by_curves: Some(0.844),
                },
                VolumePart {
                    name: "vm-images-of-the-development-department".into(),
                    ..VolumePart::default()
                },
            ],
        }),
        patrol: PatrolStatus {
            ecc: "parity".into(),
            walk_seconds: 63.96,
            ..PatrolStatus::default()
        },
        log: LogStatus::default(),
        connections: 12,
        listeners: vec!["unix:/run/forebay/nbd.sock".into(), "tcp:[::]:10809".into()],
        volumes: vec![database(), images, scratch],
        journals: vec![JournalStatus {
            name: "/dev/nvme0n1p4".into(),
            capacity_bytes: 4 << 30,
            used_bytes: 1 << 30,
            records: 240_000,
            batches: 60_000,
            written_bytes: 1 << 30,
            payload_bytes: 960 << 20,
            commit: LatencySummary {
                count: 60_000,
                mean_us: 31.0,
                p99_us: 88.0,
                ..Default::default()
            },
            ..JournalStatus::default()
        }],
        ..Status::default()
    }
}

/// The same with a failed disk and a UPS on battery.
pub(crate) fn failing() -> Status {
    let mut status = healthy();
    let disk = &mut status.volumes[2];
    disk.state = VolumeState::Failing;
    disk.state_reason =
        Some("the backing store refuses dirty data, which is kept and retried".into());
    disk.counters.backend_errors = 3;
    disk.disk_errors = 3;
    let through = &mut status.volumes[0];
    through.protection = "ups".into();
    through.effective_mode = Mode::WriteThrough;
    through.effective_mode_reason = Some("UPS rack-a is on battery, 300 s left".into());
    status.power = Some(PowerStatus {
        reason: "UPS rack-a is on battery, 300 s left".into(),
        dirty_bytes: 1288 << 20,
        dirty_bytes_max: 4 << 30,
        forecast: "if mains failed now: dump 7 s, battery 300 s".into(),
        needed: "rack-a".into(),
        supplies: vec![UpsStatus {
            name: "rack-a".into(),
            place: "nut:rack-a@localhost".into(),
            state: "on battery, 300 s left".into(),
            status: Some("OB DISCHRG".into()),
            charge_percent: Some(41.0),
            runtime_seconds: Some(300),
            load_percent: Some(22.0),
            ..UpsStatus::default()
        }],
        ..PowerStatus::default()
    });
    status.vault = Some(VaultStatus {
        name: "/fast/vault".into(),
        capacity_bytes: 4 << 30,
        write_bytes_per_second: Some(512 << 20),
        ..VaultStatus::default()
    });
    with_alerts(status)
}

/// A server with this many volumes, the last of which fails.
pub(crate) fn many(count: usize) -> Status {
    let volume = |n: usize| VolumeStatus {
        name: format!("volume-with-a-long-name-{n:04}"),
        counters: Counters { reads: n as u64, ..Counters::default() },
        ..database()
    };
    let mut status = Status { volumes: (0..count).map(volume).collect(), ..healthy() };
    status.volumes[count - 1].state = VolumeState::Failing;
    with_alerts(status)
}
