//! The messages on the socket.

use crate::{RING_ENTRIES_MAX, RINGS_MAX};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes of the payload of a message at most.
pub const PAYLOAD_BYTES_MAX: usize = 512;

/// Descriptors that come with a message at most.
pub const DESCRIPTORS_MAX: usize = 8;

/// Pieces of a guest's memory at most.
pub const MEMORY_REGIONS_MAX: usize = 64;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// The feature of virtio that announces [`protocol`] features.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Features of the protocol.
pub mod protocol {
    /// More than one ring.
    pub const MQ: u64 = 1 << 0;
    /// Messages can ask for an acknowledgement.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The server has a channel for messages to the monitor.
    pub const CHANNEL: u64 = 1 << 5;
    /// The properties of the device are read over the socket.
    pub const CONFIG: u64 = 1 << 9;
    /// Requests in flight are recorded in shared memory.
    pub const INFLIGHT: u64 = 1 << 12;
    /// The device can be reset.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Memory is added and removed in pieces.
    pub const MEMORY_SLOTS: u64 = 1 << 15;
    /// All of these.
    pub const ALL: u64 = MQ | REPLY_ACK | CHANNEL | CONFIG | INFLIGHT | RESET_DEVICE | MEMORY_SLOTS;
}

/// The head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct MessageHead {
    request: u32,
    flags: u32,
    size: u32,
}

/// Bytes of a [`MessageHead`].
pub const HEADER_BYTES: usize = size_of::<MessageHead>();
const _: () = assert!(HEADER_BYTES == 12);

impl MessageHead {
    /// Reads a head.
    ///
    /// # Errors
    /// It is of another version, or of a message that is too long.
    pub fn parse(bytes: [u8; HEADER_BYTES]) -> Result<Self, MessageError> {
        let header: Self = zerocopy::transmute!(bytes);
        if header.flags & VERSION_MASK != VERSION || header.flags & REPLY != 0 {
            return Err(MessageError::Version);
        }
        if header.payload_bytes() > PAYLOAD_BYTES_MAX {
            return Err(MessageError::Length { request: header.request });
        }
        Ok(header)
    }

    /// Bytes of the payload that follow.
    pub const fn payload_bytes(&self) -> usize {
        self.size as usize
    }

    /// Whether the sender waits for an acknowledgement, if it and the server have agreed on that.
    pub const fn needs_reply(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }

    /// The answer to this message, ready to be sent.
    pub fn reply(&self, payload: &[u8]) -> Vec<u8> {
        let size = u32::try_from(payload.len()).expect("a reply is short");
        let header = Self { request: self.request, flags: VERSION | REPLY, size };
        [header.as_bytes(), payload].concat()
    }
}

/// The message to a monitor, over [`protocol::CHANNEL`], that the properties of the device have
/// changed.
pub fn config_changed() -> [u8; HEADER_BYTES] {
    zerocopy::transmute!(MessageHead { request: 2, flags: VERSION, size: 0 })
}

/// A message that is not understood. The connection cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Not version 1, or a reply.
    #[error("the other side does not speak version 1 of vhost-user")]
    Version,
    /// A payload that is longer or shorter than such a message can have.
    #[error("message {request} has a length that is not possible")]
    Length {
        /// The number of the message.
        request: u32,
    },
    /// A message of a feature that was not offered.
    #[error("message {request} is not supported")]
    Unknown {
        /// The number of the message.
        request: u32,
    },
    /// A number beyond its limit.
    #[error("message {request} has an impossible value")]
    Value {
        /// The number of the message.
        request: u32,
    },
}

/// A piece of the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct MemoryRegion {
    /// Its first address in the guest.
    pub guest_address: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its first address in the monitor, which addresses of rings refer to.
    pub monitor_address: u64,
    /// Where it begins in the file that comes with it.
    pub file_offset: u64,
}

/// Where a ring is, in addresses of the monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct RingAddresses {
    ring: u32,
    flags: u32,
    /// The table of descriptors.
    pub descriptors: u64,
    /// The used ring.
    pub used: u64,
    /// The available ring.
    pub available: u64,
    log: u64,
}

/// The region of requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct InflightShape {
    /// Its length in bytes.
    pub bytes: u64,
    /// Where it begins in its file.
    pub file_offset: u64,
    /// Rings that it is for.
    pub rings: u16,
    /// Entries of each ring.
    pub entries: u16,
    padding: u32,
}

impl InflightShape {
    /// The region for rings of a device, from the start of its file.
    pub const fn new(bytes: u64, rings: u16, entries: u16) -> Self {
        Self { bytes, file_offset: 0, rings, entries, padding: 0 }
    }
}

/// A part of the properties of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct ConfigPart {
    /// Where it begins.
    pub offset: u32,
    /// Its length in bytes.
    pub bytes: u32,
    flags: u32,
}

/// A number for a ring.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct RingNumber {
    ring: u32,
    number: u32,
}

/// A message to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MonitorMessage {
    /// Asks for the features of the device.
    GetFeatures,
    /// Chooses among them.
    SetFeatures(u64),
    /// Begins or ends the session.
    SetOwner,
    /// Asks for the features of the protocol.
    GetProtocolFeatures,
    /// Chooses among them.
    SetProtocolFeatures(u64),
    /// Gives the guest's memory, each piece with its file.
    SetMemory(Vec<MemoryRegion>),
    /// Asks for the number of pieces that are possible.
    GetMemorySlots,
    /// Adds a piece, with its file.
    AddMemory(MemoryRegion),
    /// Removes a piece.
    RemoveMemory(MemoryRegion),
    /// Asks for the number of rings that are possible.
    GetRings,
    /// Gives the entries of a ring.
    SetRingEntries {
        /// The ring.
        ring: u16,
        /// A power of two.
        entries: u16,
    },
    /// Gives the place of a ring.
    SetRingAddresses {
        /// The ring.
        ring: u16,
        /// Its place.
        addresses: RingAddresses,
    },
    /// Gives the index of the first request.
    SetRingBase {
        /// The ring.
        ring: u16,
        /// The index.
        base: u16,
    },
    /// Stops a ring, and asks for the index of the next request.
    GetRingBase {
        /// The ring.
        ring: u16,
    },
    /// Gives the event counter that the guest advances when it adds requests.
    SetRingKick {
        /// The ring.
        ring: u16,
        /// Whether there is one.
        has_file: bool,
    },
    /// Gives the event counter that interrupts the guest.
    SetRingCall {
        /// The ring.
        ring: u16,
        /// Whether there is one.
        has_file: bool,
    },
    /// Gives the event counter for errors.
    SetRingError,
    /// Starts or stops a ring.
    EnableRing {
        /// The ring.
        ring: u16,
        /// Whether it starts.
        is_enabled: bool,
    },
    /// Gives the socket for messages to the monitor.
    SetChannel,
    /// Asks for a part of the properties of the device.
    GetConfig(ConfigPart),
    /// Changes a part of them.
    SetConfig {
        /// The part.
        part: ConfigPart,
        /// What it becomes.
        bytes: Vec<u8>,
    },
    /// Asks for a region for requests in flight.
    GetInflight(InflightShape),
    /// Gives the region of an earlier server, or the one that was just made.
    SetInflight(InflightShape),
    /// Stops all rings.
    ResetDevice,
}

impl MonitorMessage {
    /// Reads the payload of a message.
    ///
    /// # Errors
    /// See [`MessageError`].
    pub fn parse(header: &MessageHead, payload: &[u8]) -> Result<Self, MessageError> {
        let request = header.request;
        Ok(match request {
            1 => Self::GetFeatures,
            2 => Self::SetFeatures(exactly(request, payload)?),
            3 | 4 => Self::SetOwner,
            5 => Self::SetMemory(memory_table(request, payload)?),
            8 => {
                let (ring, entries) = of_ring(request, payload)?;
                let entries = u16::try_from(entries).unwrap_or(0);
                if !entries.is_power_of_two() || entries > RING_ENTRIES_MAX {
                    return Err(MessageError::Value { request });
                }
                Self::SetRingEntries { ring, entries }
            }
            9 => {
                let addresses: RingAddresses = exactly(request, payload)?;
                Self::SetRingAddresses { ring: ring_number(request, addresses.ring)?, addresses }
            }
            10 => {
                let (ring, base) = of_ring(request, payload)?;
                let base = u16::try_from(base).map_err(|_| MessageError::Value { request })?;
                Self::SetRingBase { ring, base }
            }
            11 => Self::GetRingBase { ring: of_ring(request, payload)?.0 },
            12 => {
                let (ring, has_file) = ring_file(request, exactly(request, payload)?)?;
                Self::SetRingKick { ring, has_file }
            }
            13 => {
                let (ring, has_file) = ring_file(request, exactly(request, payload)?)?;
                Self::SetRingCall { ring, has_file }
            }
            14 => Self::SetRingError,
            15 => Self::GetProtocolFeatures,
            16 => Self::SetProtocolFeatures(exactly(request, payload)?),
            17 => Self::GetRings,
            18 => {
                let (ring, enabled) = of_ring(request, payload)?;
                Self::EnableRing { ring, is_enabled: enabled != 0 }
            }
            21 => Self::SetChannel,
            24 => Self::GetConfig(config_part(request, payload)?.0),
            25 => {
                let (part, bytes) = config_part(request, payload)?;
                Self::SetConfig { part, bytes: bytes.to_vec() }
            }
            31 => Self::GetInflight(inflight(request, payload)?),
            32 => Self::SetInflight(inflight(request, payload)?),
            34 => Self::ResetDevice,
            36 => Self::GetMemorySlots,
            37 => Self::AddMemory(single_region(request, payload)?),
            38 => Self::RemoveMemory(single_region(request, payload)?),
            _ => return Err(MessageError::Unknown { request }),
        })
    }
}

/// The answer to [`MonitorMessage::GetRingBase`].
pub fn ring_base(ring: u16, base: u16) -> [u8; 8] {
    zerocopy::transmute!(RingNumber { ring: u32::from(ring), number: u32::from(base) })
}

fn exactly<T: FromBytes>(request: u32, payload: &[u8]) -> Result<T, MessageError> {
    T::read_from_bytes(payload).map_err(|_| MessageError::Length { request })
}

/// The ring of a message with a number for it, and the number.
fn of_ring(request: u32, payload: &[u8]) -> Result<(u16, u32), MessageError> {
    let RingNumber { ring, number } = exactly(request, payload)?;
    Ok((ring_number(request, ring)?, number))
}

fn ring_number(request: u32, ring: u32) -> Result<u16, MessageError> {
    let ring = u16::try_from(ring).ok().filter(|ring| *ring < RINGS_MAX);
    ring.ok_or(MessageError::Value { request })
}

/// The ring of a message with a descriptor, and whether the descriptor is there.
fn ring_file(request: u32, number: u64) -> Result<(u16, bool), MessageError> {
    Ok((ring_number(request, number as u32 & 0xff)?, number & 1 << 8 == 0))
}

fn memory_table(request: u32, payload: &[u8]) -> Result<Vec<MemoryRegion>, MessageError> {
    let too_short = MessageError::Length { request };
    let (count, rest) = u32::read_from_prefix(payload).map_err(|_| too_short)?;
    let rest = rest.get(4..).ok_or(too_short)?;
    let regions = rest.chunks(size_of::<MemoryRegion>());
    if regions.len() != count as usize || regions.len() > DESCRIPTORS_MAX {
        return Err(MessageError::Value { request });
    }
    regions.map(|region| check_region(request, exactly(request, region)?)).collect()
}

fn single_region(request: u32, payload: &[u8]) -> Result<MemoryRegion, MessageError> {
    let region = payload.get(8..).ok_or(MessageError::Length { request })?;
    check_region(request, exactly(request, region)?)
}

/// A region whose addresses all are numbers.
fn check_region(request: u32, region: MemoryRegion) -> Result<MemoryRegion, MessageError> {
    let starts = [region.guest_address, region.monitor_address, region.file_offset];
    let fits = starts.iter().all(|start| start.checked_add(region.bytes).is_some());
    if !fits || region.bytes == 0 {
        return Err(MessageError::Value { request });
    }
    Ok(region)
}

fn config_part(request: u32, payload: &[u8]) -> Result<(ConfigPart, &[u8]), MessageError> {
    let (part, bytes) =
        ConfigPart::read_from_prefix(payload).map_err(|_| MessageError::Length { request })?;
    if bytes.len() != part.bytes as usize {
        return Err(MessageError::Length { request });
    }
    Ok((part, bytes))
}

/// The payload has four bytes of padding, or none.
fn inflight(request: u32, payload: &[u8]) -> Result<InflightShape, MessageError> {
    let mut whole = [0; size_of::<InflightShape>()];
    if payload.len() > whole.len() || payload.len() < whole.len() - 4 {
        return Err(MessageError::Length { request });
    }
    whole[..payload.len()].copy_from_slice(payload);
    let shape: InflightShape = zerocopy::transmute!(whole);
    if !(1..=RINGS_MAX).contains(&shape.rings) || !(1..=RING_ENTRIES_MAX).contains(&shape.entries) {
        return Err(MessageError::Value { request });
    }
    Ok(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(request: u32, size: u32) -> MessageHead {
        MessageHead { request, flags: VERSION, size }
    }

    fn parse(request: u32, payload: &[u8]) -> Result<MonitorMessage, MessageError> {
        MonitorMessage::parse(&header(request, payload.len() as u32), payload)
    }

    #[test]
    fn a_head_of_another_version_or_of_a_long_message_is_refused() {
        let bytes = |header: MessageHead| zerocopy::transmute!(header);
        assert!(MessageHead::parse(bytes(header(1, 512))).is_ok());
        assert_eq!(
            MessageHead::parse(bytes(header(1, 513))),
            Err(MessageError::Length { request: 1 })
        );
        for flags in [0, 2, VERSION | REPLY] {
            let other = MessageHead { flags, ..header(1, 0) };
            assert_eq!(MessageHead::parse(bytes(other)), Err(MessageError::Version));
        }
        assert!(MessageHead { flags: VERSION | NEED_REPLY, ..header(1, 0) }.needs_reply());
    }

    #[test]
    fn a_reply_has_the_number_of_its_message() {
        let reply = header(15, 0).reply(&7_u64.to_le_bytes());
        assert_eq!(reply, [15, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_table_has_as_many_regions_as_it_says() {
        let region = MemoryRegion {
            guest_address: 1 << 32,
            bytes: 4096,
            monitor_address: 0x7000,
            file_offset: 8192,
        };
        let table = |count: u32, regions: &[MemoryRegion]| {
            let mut bytes = vec![0; 8];
            bytes[..4].copy_from_slice(&count.to_le_bytes());
            bytes.extend_from_slice(regions.as_bytes());
            parse(5, &bytes)
        };
        assert_eq!(table(2, &[region; 2]), Ok(MonitorMessage::SetMemory(vec![region; 2])));
        assert_eq!(table(1, &[region; 2]), Err(MessageError::Value { request: 5 }));
        assert_eq!(table(9, &[region; 9]), Err(MessageError::Value { request: 5 }));
        assert_eq!(parse(5, &[0; 7]), Err(MessageError::Length { request: 5 }));
        assert_eq!(parse(5, &[1; 20]), Err(MessageError::Value { request: 5 }));
        for bad in [
            MemoryRegion { bytes: 0, ..region },
            MemoryRegion { bytes: u64::MAX, ..region },
            MemoryRegion { file_offset: u64::MAX, ..region },
        ] {
            assert_eq!(table(1, &[bad]), Err(MessageError::Value { request: 5 }));
        }
    }

    #[test]
    fn rings_and_their_entries_have_limits() {
        let pair = |ring: u32, number: u32| [ring.to_le_bytes(), number.to_le_bytes()].concat();
        let entries = |entries| parse(8, &pair(1, entries));
        assert_eq!(entries(1024), Ok(MonitorMessage::SetRingEntries { ring: 1, entries: 1024 }));
        for wrong in [0, 3, 2048, 1 << 16] {
            assert_eq!(entries(wrong), Err(MessageError::Value { request: 8 }));
        }
        assert_eq!(parse(11, &pair(64, 0)), Err(MessageError::Value { request: 11 }));
        assert_eq!(parse(10, &pair(0, 1 << 16)), Err(MessageError::Value { request: 10 }));
        let kick = |number: u64| parse(12, &number.to_le_bytes());
        assert_eq!(kick(3), Ok(MonitorMessage::SetRingKick { ring: 3, has_file: true }));
        assert_eq!(kick(0x103), Ok(MonitorMessage::SetRingKick { ring: 3, has_file: false }));
    }

    #[test]
    fn a_region_in_flight_may_come_without_padding() {
        let shape = InflightShape::new(4096, 2, 128);
        let bytes = shape.as_bytes();
        assert_eq!(parse(31, bytes), Ok(MonitorMessage::GetInflight(shape)));
        assert_eq!(parse(32, &bytes[..20]), Ok(MonitorMessage::SetInflight(shape)));
        assert_eq!(parse(32, &bytes[..19]), Err(MessageError::Length { request: 32 }));
        let none = InflightShape::new(4096, 0, 128);
        assert_eq!(parse(31, none.as_bytes()), Err(MessageError::Value { request: 31 }));
    }

    #[test]
    fn a_part_of_the_properties_has_its_bytes() {
        let part = |bytes: u32, len: usize| {
            let mut payload = vec![0; 12 + len];
            payload[0] = 32;
            payload[4..8].copy_from_slice(&bytes.to_le_bytes());
            parse(25, &payload)
        };
        assert!(matches!(part(1, 1), Ok(MonitorMessage::SetConfig { .. })));
        assert_eq!(part(2, 1), Err(MessageError::Length { request: 25 }));
    }
}
