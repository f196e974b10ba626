//! The ranges of the I/Os that an operation emits, while they are built.

use crate::{Place, Seal, Segment};
use forebay_types::{ByteRange, Few};

/// Consecutive bytes of one I/O under construction.
#[derive(Debug)]
pub(crate) struct IoRun {
    pub range: ByteRange,
    pub segments: Few<Segment>,
    /// Sealed lines to verify before the write.
    pub seals: Vec<Seal>,
}

/// Appends a segment to the last run, bridging a gap of up to `bridge_max` bytes, or starts a new
/// run.
pub(crate) fn push_run(runs: &mut Few<IoRun>, offset: u64, segment: Segment, bridge_max: u64) {
    let gap = runs.last().map_or(0, |run| {
        let end = run.range.end();
        offset.checked_sub(end).expect("the segments of an operation are in ascending order")
    });
    if let Some(run) = runs.last_mut()
        && gap <= bridge_max
    {
        if gap > 0 {
            run.segments.push(Segment { place: Place::Discard, len: gap as u32 });
        }
        run.range.len += gap + u64::from(segment.len);
        run.segments.push(segment);
        return;
    }
    let range = ByteRange::new(offset, u64::from(segment.len));
    runs.push(IoRun { range, segments: Few::from_buf([segment]), seals: Vec::new() });
}
