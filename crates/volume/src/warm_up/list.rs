//! Making and shortening lists of granules.

use super::lines_of;
use forebay_types::{GRANULE_LINES, Granule, LINE_BYTES, PinnedRanges};

/// Collects the lines of one volume, with their values, into granules in ascending order. Lines
/// without a value are left out. `lines` is in ascending order, each line once.
pub fn collect_granules(lines: impl IntoIterator<Item = (u64, u8)>) -> Vec<Granule> {
    let mut granules: Vec<Granule> = Vec::new();
    for (line, value) in lines.into_iter().filter(|(_, value)| *value > 0) {
        let (index, bit) = (line / GRANULE_LINES, 1 << (line % GRANULE_LINES));
        match granules.last_mut() {
            Some(last) if last.index == index => {
                assert!(last.lines < bit, "line {line} is out of order");
                last.lines |= bit;
                last.value += value;
            }
            last => {
                assert!(last.is_none_or(|last| last.index < index), "line {line} is out of order");
                granules.push(Granule { index, lines: bit, value });
            }
        }
    }
    granules
}

/// The granules of pinned ranges, in ascending order. The ranges must not exceed the volume.
pub fn granules_of(ranges: &PinnedRanges) -> Vec<Granule> {
    let mut granules: Vec<Granule> = Vec::new();
    for range in ranges.iter() {
        let (mut line, end) = (range.offset / LINE_BYTES, range.end() / LINE_BYTES);
        while line < end {
            let (index, first) = (line / GRANULE_LINES, line % GRANULE_LINES);
            let count = (end - line).min(GRANULE_LINES - first);
            let lines = (((1u64 << count) - 1) << first) as u32;
            match granules.last_mut() {
                Some(last) if last.index == index => last.lines |= lines,
                _ => granules.push(Granule { index, lines, value: 0 }),
            }
            line += count;
        }
    }
    granules
}

/// Merges two lists in ascending order into one. Where both have a granule, the result has the
/// lines of both; a line that is in both has the value that it has in `first`.
pub fn merge_granules(first: &[Granule], second: &[Granule]) -> Vec<Granule> {
    let mut merged = Vec::with_capacity(first.len().max(second.len()));
    let (mut first, mut second) = (first.iter().peekable(), second.iter().peekable());
    loop {
        let (a, b) = (first.peek(), second.peek());
        let (a, b) = match (a, b) {
            (Some(a), Some(b)) => (a.index <= b.index, b.index <= a.index),
            (a, b) => (a.is_some(), b.is_some()),
        };
        match (first.next_if(|_| a), second.next_if(|_| b)) {
            (Some(a), Some(b)) => merged.push(join(*a, *b)),
            (Some(one), None) | (None, Some(one)) => merged.push(*one),
            (None, None) => return merged,
        }
    }
}

/// The lines of both granules, which have the same number.
fn join(first: Granule, second: Granule) -> Granule {
    let only_second = (second.lines & !first.lines).count_ones();
    let added = u32::from(second.value) * only_second / second.line_count();
    Granule {
        lines: first.lines | second.lines,
        value: (u32::from(first.value) + added) as u8,
        ..first
    }
}

/// Keeps the `count` most valuable granules, in ascending order.
pub fn keep_most_valuable(granules: &mut Vec<Granule>, count: usize) {
    if granules.len() > count {
        granules.sort_unstable_by(Granule::by_value);
        granules.truncate(count);
        granules.sort_unstable_by_key(|granule| granule.index);
    }
}

/// Shortens a list to the most valuable granules, in ascending order, if the pool has shrunk from
/// `old_lines` to `new_lines`: the list then has at most the same share of the pool as before.
pub fn shrink_to_pool(granules: &mut Vec<Granule>, old_lines: u64, new_lines: u64) {
    let lines = lines_of(granules);
    // A list from a file may have more lines than the pool that it was made from.
    let share = u128::from(lines) * u128::from(new_lines) / u128::from(old_lines.max(1));
    let lines_max = (share as u64).min(new_lines);
    if lines <= lines_max {
        return;
    }
    granules.sort_unstable_by(Granule::by_value);
    let mut left = lines_max;
    granules.retain(|granule| {
        let lines = u64::from(granule.line_count());
        let fits = lines <= left;
        left = if fits { left - lines } else { 0 };
        fits
    });
    granules.sort_unstable_by_key(|granule| granule.index);
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::LINE_VALUE_MAX;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn lines() -> impl Strategy<Value = BTreeMap<u64, u8>> {
        prop::collection::btree_map(0u64..400, 0u8..=LINE_VALUE_MAX, 0..300)
    }

    /// The lines of granules.
    fn lines_in(granules: &[Granule]) -> Vec<u64> {
        let lines = |granule: &Granule| {
            let (index, lines) = (granule.index, granule.lines);
            let set = (0..GRANULE_LINES).filter(move |bit| lines & 1 << bit != 0);
            set.map(move |bit| index * GRANULE_LINES + bit)
        };
        granules.iter().flat_map(lines).collect()
    }

    proptest! {
        #[test]
        fn granules_have_the_lines_with_a_value(lines in lines()) {
            let granules = collect_granules(lines.iter().map(|(&line, &value)| (line, value)));
            let valued = lines.iter().filter(|(_, value)| **value > 0);
            let valued: Vec<u64> = valued.map(|(&line, _)| line).collect();
            prop_assert_eq!(lines_in(&granules), valued);
            let sum: u64 = lines.values().map(|&value| u64::from(value)).sum();
            let values = granules.iter().map(|granule| u64::from(granule.value));
            prop_assert_eq!(values.sum::<u64>(), sum);
            prop_assert!(granules.is_sorted_by(|a, b| a.index < b.index));
        }

        #[test]
        fn a_merged_list_has_the_lines_of_both(first in lines(), second in lines()) {
            let list = |lines: &BTreeMap<u64, u8>| {
                collect_granules(lines.iter().map(|(&line, &value)| (line, value)))
            };
            let (first, second) = (list(&first), list(&second));
            let merged = merge_granules(&first, &second);
            let mut both = [lines_in(&first), lines_in(&second)].concat();
            both.sort_unstable();
            both.dedup();
            prop_assert_eq!(lines_in(&merged), both);
            prop_assert!(merged.is_sorted_by(|a, b| a.index < b.index));
            for granule in merged {
                let value_max = granule.line_count() * u32::from(LINE_VALUE_MAX);
                prop_assert!(u32::from(granule.value) <= value_max);
            }
        }

        #[test]
        fn kept_granules_are_worth_more_than_dropped_ones(
            lines in lines(), new_lines in 0u64..400, count in 0usize..20,
        ) {
            let all = collect_granules(lines.iter().map(|(&line, &value)| (line, value)));
            let mut shrunk = all.clone();
            shrink_to_pool(&mut shrunk, 400, new_lines);
            prop_assert!(lines_of(&shrunk) <= lines_of(&all) * new_lines / 400 || shrunk == all);
            let mut most = all.clone();
            keep_most_valuable(&mut most, count);
            prop_assert_eq!(most.len(), count.min(all.len()));
            for kept in [shrunk, most] {
                prop_assert!(kept.is_sorted_by(|a, b| a.index < b.index));
                let worst = kept.iter().max_by(|a, b| a.by_value(b));
                let dropped = all.iter().filter(|granule| !kept.contains(granule));
                let best = dropped.min_by(|a, b| a.by_value(b));
                if let (Some(worst), Some(best)) = (worst, best) {
                    prop_assert!(worst.by_value(best).is_lt(), "{worst:?} {best:?}");
                }
            }
        }
    }

    #[test]
    fn a_list_larger_than_the_pool_is_shortened_whatever_it_says() {
        let granule = |index| Granule { index, lines: u32::MAX, value: 32 };
        let all: Vec<Granule> = (0..100).map(granule).collect();
        for old_lines in [0, 1, 64, 3_200, u64::MAX] {
            let mut granules = all.clone();
            shrink_to_pool(&mut granules, old_lines, 64);
            assert!(granules.len() <= 2, "{old_lines}: {}", granules.len());
        }
        let mut granules = all.clone();
        shrink_to_pool(&mut granules, 3_200, 3_200);
        assert_eq!(granules, all);
    }
}
