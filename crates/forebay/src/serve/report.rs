//! Converts the runtime's figures to the types of the control API.

use super::condition;
use super::statistics::{counters, disk_use, latencies};
use crate::report::sentence_of;
use forebay_api::{
    CacheOff, CacheRatio, CurvePoint, CurveStatus, Damage, ForecastScore, ForecastStatus,
    GatherSource, GatherStatus, GovernorStatus, LearnState, LearnStatus, Memory,
    MemoryOutlook as OutlookStatus, MemorySizing, PatrolStatus, PinState, PinStatus, PowerStatus,
    SavedStatus, VolumeStatus, WarmUpState, WarmUpStatus, WriteBackFigures,
};
use forebay_config::{ResolvedGeometry, VolumeSpec, read_latency_shown};
use forebay_runtime::{
    Calibration, Ecc, MemoryStatus, MissRatioCurve, PoolSize, RuntimeStatus, SizeAdvice,
    SizeOutlook, SizePrediction, ThresholdSource, VolumeStatus as Figures, WarmUpState as State,
    remedy_for_save,
};
use forebay_types::{LINE_BYTES, Mode, SECTOR_BYTES, UnsafeUps};

pub(super) fn memory(
    memory: &MemoryStatus,
    sizing: Option<MemorySizing>,
    cache_ratio: CacheRatio,
) -> Memory {
    Memory {
        limit_bytes: memory.limit_bytes,
        sizing,
        limit_bytes_min: memory.limit_bytes_min,
        limit_bytes_max: memory.limit_bytes_max,
        pool_bytes: memory.pool_bytes,
        used_bytes: memory.used_bytes,
        dirty_bytes: memory.dirty_bytes,
        cache_ratio: Some(cache_ratio),
        metadata_bytes: memory.metadata_bytes,
        pinned_bytes: memory.pinned_bytes,
        pinned_bytes_max: memory.pinned_bytes_max,
    }
}

pub(super) fn patrol(status: &RuntimeStatus) -> PatrolStatus {
    let patrol = &status.memory.patrol;
    let ecc = match patrol.ecc {
        Ecc::Off => forebay_config::Ecc::Off,
        Ecc::Checksum => forebay_config::Ecc::Checksum,
        Ecc::Parity => forebay_config::Ecc::Parity,
    };
    let mut found = Damage::default();
    status.volumes.iter().for_each(|volume| found.add(&damage(volume)));
    PatrolStatus {
        ecc: ecc.to_string(),
        sealed_lines: patrol.sealed_lines,
        verified_lines: patrol.verified_lines,
        unsealed_bytes: patrol.unsealed_bytes,
        parity_bytes: patrol.parity_bytes,
        parity_slot_bytes: patrol.parity_slot_bytes,
        walks: patrol.walks,
        walk_seconds: patrol.walk_ms as f64 / 1000.0,
        damage: found,
    }
}

fn damage(figures: &Figures) -> Damage {
    let engine = &figures.engine;
    Damage {
        found_lines: engine.damaged_lines,
        corrected_lines: engine.corrected_lines,
        fetched_again_lines: engine.refetched_lines,
        lost_lines: engine.lost_lines,
        back_from_journal_lines: engine.regained_lines,
        lost_bytes: figures.lost_sectors * SECTOR_BYTES,
    }
}

/// All that people want to know of a volume.
pub(super) fn volume(
    spec: &VolumeSpec,
    figures: &Figures,
    memory: &MemoryStatus,
    power: Option<&PowerStatus>,
    stripe_bytes_max: u64,
) -> VolumeStatus {
    forebay_control::with_settings(
        VolumeStatus {
            gather: gather(figures),
            curve: curve(figures, memory),
            latency: latencies(&figures.latencies),
            ..self::figures(spec, figures, memory, power, stripe_bytes_max)
        },
        spec,
    )
}

/// The part of the status of a volume that metrics show and alerts need. It takes little time.
pub(super) fn figures(
    spec: &VolumeSpec,
    figures: &Figures,
    memory: &MemoryStatus,
    power: Option<&PowerStatus>,
    stripe_bytes_max: u64,
) -> VolumeStatus {
    let geometry = ResolvedGeometry::new(&spec.config, &figures.backing.geometry, stripe_bytes_max);
    let (effective_mode, effective_mode_reason) =
        effective_mode(figures, memory, power, spec.config.unsafe_supply);
    let condition = figures.condition();
    let (state, state_reason) = condition::state_of(&condition);
    VolumeStatus {
        size_bytes: figures.backing.size_bytes(),
        effective_mode: effective_mode.into(),
        effective_mode_reason,
        read_only: figures.read_only,
        warm_up: warm_up(spec, figures),
        pins: pins(figures),
        saved: saved(figures),
        learn: learn(spec, figures),
        geometry: forebay_control::geometry_status(&geometry),
        write_back: write_back(spec, figures),
        state,
        state_reason,
        stall: condition.stall.as_ref().map(condition::stall),
        disk_errors: figures.disk_errors,
        cached_bytes: figures.cached_bytes,
        share_min_bytes: figures.share_min_bytes,
        share_max_bytes: figures.share_max_bytes,
        dirty_bytes: figures.dirty_bytes,
        damage: damage(figures),
        counters: counters(&figures.statistics),
        disk: disk_use(&figures.statistics, figures.disk.in_flight),
        ..forebay_control::configured_status(spec)
    }
}

/// The status of a volume whose cache is off for an analysis. Writes of an ordered volume are
/// acknowledged from memory all the same, because of their order.
pub(super) fn with_cache_off(status: VolumeStatus, off: CacheOff) -> VolumeStatus {
    let cache_off = Some(off);
    match status.mode {
        forebay_api::Mode::Bypass => status,
        forebay_api::Mode::WriteBack if status.ordered => VolumeStatus { cache_off, ..status },
        _ => VolumeStatus {
            effective_mode: forebay_api::Mode::Bypass,
            effective_mode_reason: Some("an analysis has its cache off".to_owned()),
            cache_off,
            ..status
        },
    }
}

/// The effect of less or more memory on a volume; `None` while it is unknown, and for a volume that
/// admits nothing into the pool.
pub(super) fn memory_outlook(figures: &Figures, memory: &MemoryStatus) -> Option<SizeOutlook> {
    let sizes = figures.sizes.as_ref()?;
    SizeOutlook::of(sizes, figures.cached_bytes, memory.used_bytes, memory.pool_bytes)
}

/// The sizes of the points of a curve of LRU, in eighths of the pool.
const POINT_EIGHTHS: [u64; 11] = [1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64];

fn curve(figures: &Figures, memory: &MemoryStatus) -> CurveStatus {
    let Some(curve) = &figures.curve else { return CurveStatus::default() };
    let outlook = memory_outlook(figures, memory);
    let points = match (&outlook, &figures.sizes) {
        (Some(outlook), Some(sizes)) => predicted_points(outlook, sizes, curve.accesses()),
        _ => lru_points(curve, memory.pool_bytes),
    };
    CurveStatus {
        accesses: curve.accesses() as u64,
        sampled_accesses: curve.sampled_accesses() as u64,
        points,
        outlook: outlook.map(|outlook| OutlookStatus {
            share_bytes: outlook.share_bytes,
            miss_ratio_half: outlook.half,
            miss_ratio_now: outlook.now,
            miss_ratio_twice: outlook.twice,
            advice: match outlook.advice {
                SizeAdvice::Keep => forebay_api::MemoryAdvice::Keep,
                SizeAdvice::Less => forebay_api::MemoryAdvice::Less,
                SizeAdvice::More { .. } => forebay_api::MemoryAdvice::More,
            },
            reason: outlook.to_string(),
        }),
    }
}

/// What the volume would miss if the pool, and so its share, had another size.
fn predicted_points(
    outlook: &SizeOutlook,
    sizes: &SizePrediction,
    accesses: f64,
) -> Vec<CurvePoint> {
    let point = |size: PoolSize| {
        let miss_ratio = sizes.miss_ratio(size)?;
        let hits_gained = (outlook.now - miss_ratio) * accesses;
        Some(CurvePoint { bytes: size.of(outlook.share_bytes), miss_ratio, hits_gained })
    };
    PoolSize::ALL.into_iter().filter_map(point).collect()
}

/// What the volume would miss alone in LRU caches, compared with one as large as the pool.
fn lru_points(curve: &MissRatioCurve, pool_bytes: u64) -> Vec<CurvePoint> {
    let point = |eighths| {
        let bytes = pool_bytes / 8 * eighths;
        let hits_gained = curve.hits(bytes) - curve.hits(pool_bytes);
        Some(CurvePoint { bytes, miss_ratio: curve.miss_ratio(bytes)?, hits_gained })
    };
    POINT_EIGHTHS.into_iter().filter_map(point).collect()
}

fn warm_up(spec: &VolumeSpec, figures: &Figures) -> WarmUpStatus {
    let warm_up = &figures.warm_up;
    WarmUpStatus {
        enabled: spec.config.warm,
        state: match warm_up.state {
            State::None => WarmUpState::None,
            State::Loading => WarmUpState::Loading,
            State::Loaded => WarmUpState::Loaded,
            State::Full => WarmUpState::Full,
            State::Failing => WarmUpState::Failing,
            State::Cancelled => WarmUpState::Cancelled,
            State::Unusable => WarmUpState::Unusable,
        },
        planned_bytes: warm_up.planned_lines * LINE_BYTES,
        done_bytes: warm_up.done_lines * LINE_BYTES,
    }
}

fn learn(spec: &VolumeSpec, figures: &Figures) -> LearnStatus {
    let learn = &figures.learn;
    LearnStatus {
        enabled: spec.config.learn,
        state: match learn.state {
            forebay_runtime::LearnState::Off => LearnState::Off,
            forebay_runtime::LearnState::Learning => LearnState::Learning,
            forebay_runtime::LearnState::Paused => LearnState::Paused,
            forebay_runtime::LearnState::Unwritable => LearnState::Unwritable,
        },
        slot: learn.slot.map(|slot| slot.to_string()),
        observed_slots: learn.observed_slots as u64,
        regions: learn.regions as u64,
        days_required: learn.days_demanded,
        weeks_required: learn.weeks_demanded,
        forecast: learn.forecast.map(|forecast| ForecastStatus {
            slot: forecast.slot.to_string(),
            bytes: forecast.bytes,
            beyond_budget_bytes: forecast.bytes_left,
            daily_regions: forecast.daily_regions as u64,
            weekly_regions: forecast.weekly_regions as u64,
        }),
        score: learn.score.map(|score| ForecastScore {
            slot: score.slot.to_string(),
            preloaded_bytes: score.preloaded_lines * LINE_BYTES,
            used_bytes: score.used_lines * LINE_BYTES,
        }),
    }
}

fn saved(figures: &Figures) -> Option<SavedStatus> {
    figures.saved.as_ref().map(|saved| SavedStatus {
        file: saved.path.display().to_string(),
        // If the clock was set back since then, the age is zero.
        age_seconds: saved.last.map(|last| last.elapsed().unwrap_or_default().as_secs()),
        changed: saved.is_changed,
        saving: saved.is_saving,
        took_ms: saved.took.map(|took| took.as_millis() as u64),
        every_seconds: saved.every.map(|every| every.as_secs()),
        error: saved.failed.as_ref().map(|(_, error)| error.clone()),
        remedy: saved.failed.as_ref().map(|(kind, _)| remedy_for_save(*kind).to_owned()),
    })
}

fn pins(figures: &Figures) -> PinStatus {
    let pins = &figures.pins;
    let state = if pins.refused.is_some() {
        PinState::Refused
    } else if pins.pinned_lines == 0 {
        PinState::None
    } else if figures.mode == Mode::Bypass {
        PinState::Suspended
    } else if pins.loaded_lines >= pins.pinned_lines {
        PinState::Loaded
    } else if pins.is_failing {
        PinState::Failing
    } else {
        PinState::Loading
    };
    PinStatus {
        state,
        state_reason: pins.refused.as_ref().map(|error| sentence_of(error)),
        pinned_bytes: pins.pinned_lines * LINE_BYTES,
        loaded_bytes: pins.loaded_lines * LINE_BYTES,
    }
}

fn gather(figures: &Figures) -> GatherStatus {
    let gather = &figures.gather;
    let not_measured = match &gather.calibration {
        Calibration::Done => None,
        Calibration::Unwanted => Some("gather-below is set".to_owned()),
        Calibration::Waiting => Some("waiting for a moment without requests".to_owned()),
        Calibration::Failed(failure) => Some(failure.to_string()),
    };
    GatherStatus {
        below_bytes: gather.below_bytes,
        source: match gather.source {
            ThresholdSource::Set => GatherSource::SetByHand,
            ThresholdSource::Measured => GatherSource::Measured,
            ThresholdSource::Default => GatherSource::Default,
        },
        measured_below_bytes: gather.measured.map(|cost| cost.threshold_bytes),
        fixed_us: gather.measured.map(|cost| cost.fixed_us()),
        bytes_per_second: gather.measured.and_then(|cost| cost.bytes_per_second),
        not_measured,
    }
}

/// The effective mode, and why it differs from the configured one.
fn effective_mode(
    figures: &Figures,
    memory: &MemoryStatus,
    power: Option<&PowerStatus>,
    choice: UnsafeUps,
) -> (Mode, Option<String>) {
    // After a change of mode, dirty data is still being destaged.
    if figures.mode != Mode::WriteBack && figures.dirty_bytes > 0 {
        let reason = "dirty data from write-back is still being written";
        return (Mode::WriteBack, Some(reason.to_owned()));
    }
    match power {
        Some(power) if figures.halted => (Mode::WriteThrough, Some(power.reason.clone())),
        Some(power) if figures.is_ups_only && !power.write_back_allowed => {
            let is_write_back = figures.mode == Mode::WriteBack;
            let mode = if is_write_back { Mode::WriteThrough } else { figures.mode };
            (mode, is_write_back.then(|| unsafe_reason(power, choice)))
        }
        _ if figures.mode == Mode::WriteBack && memory.dirty_bytes_max == 0 => {
            let reason = "the cache ratio leaves no memory for writes";
            (Mode::WriteThrough, Some(reason.to_owned()))
        }
        _ => (figures.mode, None),
    }
}

/// Why a UPS prevents write-back, and the storage that writes are acknowledged from meanwhile.
fn unsafe_reason(power: &PowerStatus, choice: UnsafeUps) -> String {
    let source = match choice {
        UnsafeUps::Stable => "writes are acknowledged from the disk's stable storage",
        UnsafeUps::DiskCache => {
            "writes are acknowledged from the disk's cache (unsafe-supply=disk-cache), which a \
             power failure loses"
        }
    };
    format!("{}; {source}", power.reason)
}

/// How long lines were dirty on average, or have been, for those that still are. Without these, the
/// time that they have been dirty would count for the few that are clean again.
const fn mean_dirty_ms(dirty_line_ms: u64, lines: u64) -> u64 {
    dirty_line_ms / if lines == 0 { 1 } else { lines }
}

fn write_back(spec: &VolumeSpec, figures: &Figures) -> WriteBackFigures {
    let (engine, governor) = (&figures.engine, &figures.governor);
    WriteBackFigures {
        writes: engine.destage_writes,
        bytes: engine.destaged_bytes,
        whole_stripes: engine.destaged_stripes,
        scattered: engine.scattered_destages,
        held_back: engine.writes_held,
        gathered: engine.gathered_writes,
        gathered_into: engine.gathered_ios,
        urgent: engine.destages_urgent,
        normal: engine.destages_background,
        waits: engine.throttled_writes,
        mean_dirty_ms: mean_dirty_ms(
            engine.dirty_line_ms,
            engine.cleaned_lines + figures.dirty_bytes / LINE_BYTES,
        ),
        dirty_for_ms: figures.dirty_for.as_millis() as u64,
        errors: engine.destage_errors,
        governor: GovernorStatus {
            read_latency: read_latency_shown(&spec.config.read_latency),
            idle_p99_us: governor.idle_us,
            target_p99_us: governor.target_us,
            beside_p99_us: governor.beside_us,
            bursts_per_second: governor.pace_milli.map(|milli| milli as f64 / 1_000.0),
            raised: governor.raised,
            lowered: governor.lowered,
        },
    }
}
