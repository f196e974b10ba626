//! How the pool is divided between the volumes, and what shares by their miss-ratio curves would
//! bring. The parts result from one eviction policy over all lines
//! (`docs/decisions/0032-one-eviction-for-all-volumes.md`).

use forebay_api::{PoolDivision, VolumePart};
use forebay_runtime::{Division, RuntimeStatus, VolumeShare};
use forebay_types::LINE_BYTES;

/// The change of the gain that is worth another line in the log.
const GAIN_CHANGE_MIN: f64 = 0.05;

/// The division of the pool; `None` with fewer than two volumes.
pub(super) fn division(figures: &RuntimeStatus) -> Option<PoolDivision> {
    let pool_bytes = figures.memory.pool_bytes;
    let shares: Option<Vec<VolumeShare>> = figures
        .volumes
        .iter()
        .map(|volume| {
            let curve = volume.curve.clone()?;
            Some(VolumeShare { curve, cached_bytes: volume.cached_bytes })
        })
        .collect();
    let by_curves = shares.and_then(|shares| Division::by_curves(&shares, pool_bytes));
    let volumes: Vec<(&str, u64)> =
        figures.volumes.iter().map(|volume| (&*volume.name, volume.cached_bytes)).collect();
    (volumes.len() > 1).then(|| describe(&volumes, pool_bytes, by_curves.as_ref()))
}

fn describe(
    volumes: &[(&str, u64)],
    pool_bytes: u64,
    by_curves: Option<&Division>,
) -> PoolDivision {
    let part = |bytes: u64| bytes as f64 / pool_bytes.max(1) as f64;
    let volume = |(at, &(name, bytes)): (usize, &(&str, u64))| VolumePart {
        name: name.to_owned(),
        lines: bytes / LINE_BYTES,
        part: part(bytes),
        part_by_curves: by_curves.map(|division| part(division.shares_bytes[at])),
    };
    let gain = by_curves.map(|division| division.gain);
    let found = match gain {
        Some(gain) => {
            format!("would serve an estimated {:.1} % more of the accesses", gain * 100.0)
        }
        None => "cannot be estimated yet: too few accesses are known".to_owned(),
    };
    PoolDivision {
        gain,
        reason: format!(
            "one eviction policy over all lines divides the pool; shares by the miss-ratio curves \
             {found}"
        ),
        volumes: volumes.iter().enumerate().map(volume).collect(),
    }
}

/// Decides when the division is worth a line in the log: when its gain is known for the first time,
/// and when it has changed much since the last line.
#[derive(Default)]
pub(super) struct DivisionLog(Option<f64>);

impl DivisionLog {
    pub(super) fn is_due(&mut self, division: &PoolDivision) -> bool {
        let Some(gain) = division.gain else { return false };
        let is_due = self.0.is_none_or(|logged| (gain - logged).abs() >= GAIN_CHANGE_MIN);
        if is_due {
            self.0 = Some(gain);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_parts_are_described_with_the_gain_of_another_division() {
        let division = Division { shares_bytes: vec![48 * MIB, 16 * MIB], gain: 0.0125 };
        let volumes = [("db", 16 * MIB), ("vm", 32 * MIB)];
        let found = describe(&volumes, 64 * MIB, Some(&division));
        assert_eq!(
            found.reason,
            "one eviction policy over all lines divides the pool; shares by the miss-ratio curves \
             would serve an estimated 1.2 % more of the accesses"
        );
        let parts: Vec<_> =
            found.volumes.iter().map(|it| (it.lines, it.part, it.part_by_curves)).collect();
        assert_eq!(parts, [(4096, 0.25, Some(0.75)), (8192, 0.5, Some(0.25))]);
        let found = describe(&volumes, 64 * MIB, None);
        assert!(found.reason.ends_with("too few accesses are known") && found.gain.is_none());
        assert_eq!(found.volumes[1].part_by_curves, None);
    }

    #[test]
    fn a_line_is_logged_at_first_and_when_the_gain_has_changed_much() {
        let mut log = DivisionLog::default();
        let mut is_due = |gain| log.is_due(&PoolDivision { gain, ..PoolDivision::default() });
        assert!(!is_due(None) && is_due(Some(0.02)) && !is_due(Some(0.02)));
        assert!(!is_due(Some(0.06)) && is_due(Some(0.08)) && !is_due(Some(0.04)));
    }
}
