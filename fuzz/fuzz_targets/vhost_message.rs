//! The messages of a virtual machine monitor.
//!
//! Properties: an accepted message stays inside of the limits that the server relies on, and no
//! sum of an address and a length overflows.

#![no_main]

use forebay_vhost::message::{DESCRIPTORS_MAX, HEADER_BYTES, MessageHead, MonitorMessage};
use forebay_vhost::{RING_ENTRIES_MAX, RINGS_MAX};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((head, payload)) = input.split_first_chunk::<HEADER_BYTES>() else { return };
    let Ok(head) = MessageHead::parse(*head) else { return };
    let payload = &payload[..payload.len().min(head.payload_bytes())];
    match MonitorMessage::parse(&head, payload) {
        Ok(MonitorMessage::SetMemory(regions)) => {
            assert!(regions.len() <= DESCRIPTORS_MAX);
            for region in regions {
                assert!(region.guest_address.checked_add(region.bytes).is_some());
                assert!(region.monitor_address.checked_add(region.bytes).is_some());
                assert!(region.file_offset.checked_add(region.bytes).is_some());
            }
        }
        Ok(MonitorMessage::SetRingEntries { ring, entries }) => {
            assert!(ring < RINGS_MAX && entries <= RING_ENTRIES_MAX && entries.is_power_of_two());
        }
        Ok(MonitorMessage::GetInflight(shape) | MonitorMessage::SetInflight(shape)) => {
            assert!((1..=RINGS_MAX).contains(&shape.rings));
            assert!((1..=RING_ENTRIES_MAX).contains(&shape.entries));
        }
        Ok(MonitorMessage::GetConfig(part)) => assert!(part.bytes as usize <= payload.len()),
        _ => {}
    }
});
