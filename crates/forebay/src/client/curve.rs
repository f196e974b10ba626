//! The table of miss ratios: the effect of less or more memory on each volume.

use super::columns::{lines, table};
use super::units::{bytes, percent};
use forebay_api::{MemoryAdvice, VolumeStatus};

/// The volumes whose outlook is known, after an empty line, and below them the reason for each
/// advice to change something. Empty if no outlook is known.
pub(super) fn curve(volumes: &[VolumeStatus]) -> String {
    let mut table =
        table(["MISSES OF", "SHARE", "HALF THE POOL", "NOW", "TWICE THE POOL", "ADVICE"]);
    let known = volumes.iter().filter_map(|volume| Some((volume, volume.curve.outlook.as_ref()?)));
    let mut notes = String::new();
    for (volume, outlook) in known.clone() {
        table.add_row([
            volume.name.clone(),
            bytes(outlook.share_bytes),
            percent(Some(outlook.miss_ratio_half)),
            percent(Some(outlook.miss_ratio_now)),
            percent(Some(outlook.miss_ratio_twice)),
            outlook.advice.to_string(),
        ]);
        if outlook.advice != MemoryAdvice::Keep {
            notes += &format!("\n{}: {}", volume.name, outlook.reason);
        }
    }
    if known.count() == 0 {
        return String::new();
    }
    let end = if notes.is_empty() { "" } else { "\n" };
    format!("\n{}{notes}{end}", lines(table, &[0, 5]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::{CurveStatus, MemoryOutlook};

    fn volume(name: &str, outlook: Option<MemoryOutlook>) -> VolumeStatus {
        let curve = CurveStatus { outlook, ..CurveStatus::default() };
        VolumeStatus { name: name.into(), curve, ..VolumeStatus::default() }
    }

    #[test]
    fn miss_ratios_are_shown_with_the_advice_and_its_reason() {
        let outlook = |advice, twice| MemoryOutlook {
            share_bytes: 64 << 20,
            miss_ratio_half: 0.5,
            miss_ratio_now: 0.25,
            miss_ratio_twice: twice,
            advice,
            reason: "25 % of accesses miss".into(),
        };
        let shown = curve(&[
            volume("db", Some(outlook(MemoryAdvice::More, 0.125))),
            volume("idle", None),
            volume("vm", Some(outlook(MemoryAdvice::Keep, 0.24))),
        ]);
        assert_eq!(
            shown,
            "\nMISSES OF   SHARE  HALF THE POOL     NOW  TWICE THE POOL  ADVICE\n\
             db         64 MiB         50.0 %  25.0 %          12.5 %  more\n\
             vm         64 MiB         50.0 %  25.0 %          24.0 %  keep\n\
             \ndb: 25 % of accesses miss\n"
        );
        assert_eq!(curve(&[volume("idle", None)]), "");
    }
}
