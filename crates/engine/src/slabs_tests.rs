use super::*;

fn rank(slabs: &mut Slabs, values: &[u64]) -> Vec<usize> {
    let slab_slots = slabs.slab_slots;
    let value = |slot: Slot| {
        let is_first = slot.is_multiple_of(slab_slots);
        if is_first { values[(slot / slab_slots) as usize] } else { 0 }
    };
    while !slabs.rank(4, value) {}
    slabs.choose().into_iter().map(|slab| slab.number).collect()
}

#[test]
fn the_least_valuable_slabs_are_chosen() {
    let mut slabs = Slabs::new(60, 10);
    slabs.set_target(30);
    let mut chosen = rank(&mut slabs, &[5, 1, 9, 0, 7, 3]);
    chosen.sort_unstable();
    assert_eq!(chosen, [1, 3, 5]);
    assert_eq!((slabs.usable(), slabs.target(), slabs.emptying), (30, 30, 3));
    // Slabs that are being emptied already are not chosen again.
    slabs.set_target(20);
    assert_eq!(rank(&mut slabs, &[5, 0, 4, 0, 7, 0]), [2]);
}

#[test]
fn of_equal_slabs_the_last_ones_are_chosen() {
    let mut slabs = Slabs::new(60, 10);
    slabs.set_target(49);
    let mut chosen = rank(&mut slabs, &[0; 6]);
    chosen.sort_unstable();
    assert_eq!(chosen, [4, 5]);
}

#[test]
fn all_slabs_but_one_can_be_chosen() {
    let mut slabs = Slabs::new(35, 10);
    slabs.set_target(0);
    let mut chosen = rank(&mut slabs, &[1, 1, 1, 9]);
    chosen.sort_unstable();
    assert_eq!(chosen, [0, 1, 2], "the last slab stays although it is short");
    assert_eq!(slabs.usable(), 5);
}

#[test]
fn slabs_are_compared_in_bounded_steps() {
    let mut slabs = Slabs::new(100, 10);
    slabs.set_target(10);
    let examined = std::cell::Cell::new(0);
    let value = |_| {
        examined.set(examined.get() + 1);
        1
    };
    let mut steps = 0;
    while !slabs.rank(25, value) {
        steps += 1;
        assert!(examined.replace(0) <= 30, "a step examines whole slabs");
    }
    assert_eq!(steps, 3);
}

#[test]
fn free_slots_of_a_slab_in_use_are_found_and_those_of_others_are_not() {
    let mut slabs = Slabs::new(20, 10);
    assert_eq!(slabs.first_free(), None);
    assert_eq!(slabs.push_free(15), NO_SLOT);
    assert_eq!(slabs.push_free(12), 15);
    assert_eq!(slabs.first_free(), Some(12));
    slabs.set_target(10);
    assert_eq!(rank(&mut slabs, &[1, 0]), [1]);
    assert_eq!(slabs.first_free(), None, "the slab is being emptied");
    assert!(slabs.keeps(3) && !slabs.keeps(12));
    slabs.set_target(20);
    assert_eq!(slabs.cancel_emptying().map(|slab| slab.number), Some(1));
    assert_eq!(slabs.first_free(), Some(12));
    slabs.pop_free(12, 15);
    slabs.pop_free(15, NO_SLOT);
    assert_eq!(slabs.first_free(), None);
}

#[test]
fn a_given_back_slab_returns_without_free_slots() {
    let mut slabs = Slabs::new(20, 10);
    slabs.push_free(12);
    slabs.set_target(10);
    rank(&mut slabs, &[1, 0]);
    let slab = slabs.slab(1);
    slabs.set_empty(slab);
    assert_eq!(slabs.end_if_away(13), Some(20));
    assert!(slabs.is_resizing());
    slabs.gave_back(slab);
    assert!(!slabs.is_resizing());
    assert_eq!(slabs.given_back().count(), 1);
    assert_eq!(slabs.next_given_back(), Some(slab));
    slabs.set_target(20);
    slabs.take_back(slab);
    assert_eq!((slabs.usable(), slabs.first_free()), (20, None));
}

#[test]
#[should_panic(expected = "is not empty")]
fn a_slab_in_use_cannot_be_given_back() {
    let mut slabs = Slabs::new(20, 10);
    let slab = slabs.slab(1);
    slabs.gave_back(slab);
}
