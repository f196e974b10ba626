//! Classes of distances: each distance up to 15 lines, and then eight classes for each doubling, so
//! that a class is at most an eighth as wide as its distances.

/// The binary logarithm of the classes per doubling.
const STEP_BITS: u32 = 3;
const STEPS: u64 = 1 << STEP_BITS;

/// The class of a distance.
pub(super) const fn class_of(distance: u64) -> usize {
    if distance < 2 * STEPS {
        return distance as usize;
    }
    let shift = distance.ilog2() - STEP_BITS;
    (STEPS * shift as u64 + (distance >> shift)) as usize
}

/// The shortest distance of a class.
pub(super) const fn first_of(class: usize) -> u64 {
    let class = class as u64;
    if class < 2 * STEPS {
        return class;
    }
    let shift = class / STEPS - 1;
    (class % STEPS + STEPS) << shift
}

/// The number of classes for distances below `depth`.
pub(super) const fn count(depth: u64) -> usize {
    class_of(depth - 1) + 1
}

/// The number of classes in this many doublings of a distance of 16 lines or more.
pub(super) const fn of_doublings(doublings: u32) -> usize {
    STEPS as usize * doublings as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_distance_is_in_the_class_that_contains_it() {
        let near = (0..100_000).chain((17..60).flat_map(|bit| {
            let power = 1u64 << bit;
            [power - 1, power, power + 1, power + power / 3]
        }));
        for distance in near {
            let class = class_of(distance);
            let (first, next) = (first_of(class), first_of(class + 1));
            assert!((first..next).contains(&distance), "{distance} in {class}: {first}..{next}");
            assert!(next - first <= (first / 8).max(1), "class {class} is {first}..{next}");
        }
    }
}
