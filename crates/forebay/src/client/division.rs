//! The table of the parts of the pool that volumes have.

use super::columns::{lines, table};
use super::units::percent;
use forebay_api::PoolDivision;

/// The table after an empty line, and below it what was decided about the division, and why.
pub(super) fn division(division: &PoolDivision) -> String {
    let mut table = table(["POOL OF", "LINES", "PART", "BY CURVES"]);
    for volume in &division.volumes {
        table.add_row([
            volume.name.clone(),
            volume.lines.to_string(),
            percent(Some(volume.part)),
            percent(volume.part_by_curves),
        ]);
    }
    format!("\n{}\npool: {}\n", lines(table, &[0]), division.reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::VolumePart;

    #[test]
    fn parts_are_shown_with_those_by_the_curves() {
        let volume = |name: &str, part_by_curves| VolumePart {
            name: name.into(),
            lines: 4096,
            part: 0.25,
            part_by_curves,
        };
        let shown = division(&PoolDivision {
            gain: Some(0.01),
            reason: "one eviction".into(),
            volumes: vec![volume("db", Some(0.5)), volume("vm", None)],
        });
        assert_eq!(
            shown,
            "\nPOOL OF  LINES    PART  BY CURVES\n\
             db        4096  25.0 %     50.0 %\n\
             vm        4096  25.0 %          -\n\
             \npool: one eviction\n"
        );
    }
}
