//! The advice as JSON.

use super::{AdviceReport, Judged, show};
use forebay_advice::{Load, Point, Prediction};
use serde_json::{Value, json};

pub(super) fn report(report: &AdviceReport) -> Value {
    json!({
        "seconds": report.seconds,
        "sampled": report.unsampled.is_none(),
        "unsampled_reason": report.unsampled,
        "events": report.seen,
        "lost_events": report.lost,
        "memory_bytes": report.memory_bytes,
        "devices": report.devices.iter().map(device).collect::<Vec<_>>(),
    })
}

fn device(judged: &Judged) -> Value {
    let advice = match (judged.mode(), judged.excluded.is_some()) {
        (Some(_), _) => "cache",
        (None, false) if judged.advice.reason.is_unknown() => "unknown",
        _ => "leave-out",
    };
    let reason = match judged.excluded {
        Some(_) => "excluded",
        None => judged.advice.reason.name(),
    };
    let expected = judged.advice.expected.map(|expected| {
        json!({
            "point": point(&expected.point),
            "memory_setting_bytes": show::memory_setting(expected.point.bytes),
            "read_us": expected.read_us,
            "cached_read_us_min": expected.cached_us.0,
            "cached_read_us_max": expected.cached_us.1,
            "saved_seconds_per_second": expected.saved,
        })
    });
    let self_caching = judged.self_caching.iter().map(|process| {
        json!({
            "name": process.name,
            "pid": process.pid,
            "resident_bytes": process.resident_bytes,
        })
    });
    json!({
        "name": judged.device.name,
        "size_bytes": judged.device.size_bytes,
        "rotational": judged.device.is_rotational,
        "advice": advice,
        "mode": judged.mode().map(|mode| mode.to_string()),
        "reason": reason,
        "because": show::because(judged),
        "watch_longer": judged.advice.watch_longer,
        "load": load(&judged.load),
        "prediction": judged.prediction.as_ref().map(prediction),
        "expected": expected,
        "self_caching": self_caching.collect::<Vec<_>>(),
    })
}

fn load(load: &Load) -> Value {
    json!({
        "reads": load.reads,
        "writes": load.writes,
        "flushes": load.flushes,
        "read_bytes": load.read_bytes,
        "write_bytes": load.write_bytes,
        "read_us": load.read_us(),
        "write_us": load.write_us(),
        "busy": load.busy(),
        "in_flight": load.queue(),
    })
}

fn prediction(prediction: &Prediction) -> Value {
    let pattern = &prediction.pattern;
    json!({
        "reads": pattern.reads,
        "writes": pattern.writes,
        "sequential_read_share": pattern.sequential_read_share(),
        "sequential_write_share": pattern.sequential_write_share(),
        "touched_bytes": prediction.touched_bytes,
        "touched_by_reads_bytes": prediction.read_bytes,
        "sampled_share": prediction.rate,
        "unknown": prediction.unknown(),
        "points": prediction.points.iter().map(point).collect::<Vec<_>>(),
    })
}

fn point(point: &Point) -> Value {
    json!({
        "bytes": point.bytes,
        "read_hit_ratio_from_empty": point.from_empty,
        "read_hit_ratio_min": point.low,
        "read_hit_ratio_max": point.high,
        "read_ahead_ratio": point.ahead,
    })
}
