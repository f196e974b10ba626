//! The input of a hostile client: a handshake and requests, valid or not, truncated anywhere.
//!
//! Scripts follow the protocol, so that most of a script passes the first check. One field is wrong
//! at a time. No valid request changes a byte beyond [`TargetVolume::hostile_bytes`]: those belong
//! to the witness.

use crate::content::LoadRandom;

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const EXTENDED_MAGIC: u32 = 0x21e4_1c71;

const OPTION_EXPORT_NAME: u32 = 1;
const OPTION_ABORT: u32 = 2;
const OPTION_LIST: u32 = 3;
const OPTION_STARTTLS: u32 = 5;
const OPTION_INFO: u32 = 6;
const OPTION_GO: u32 = 7;
const OPTION_STRUCTURED: u32 = 8;
const OPTION_SET_META: u32 = 10;
const OPTION_EXTENDED: u32 = 11;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const CACHE: u16 = 5;
const ZEROES: u16 = 6;
const BLOCK_STATUS: u16 = 7;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Requests of one script, at most.
const REQUESTS_MAX: u64 = 24;
/// Maximum payload sent for a write, unless all of a long one is sent.
const PAYLOAD_BYTES_CUT: u64 = 128 * KIB;
/// One of this many long writes is sent completely.
const WHOLE_ONE_IN: u64 = 8;
/// Payload byte: does not look like a request.
const FILLER: u8 = 0xa5;

/// The attacked volume.
#[derive(Clone, Debug)]
pub struct TargetVolume {
    /// Its name.
    pub export: String,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// Bytes from its start that hostile clients may change.
    pub hostile_bytes: u64,
}

/// The bytes of one hostile client.
pub fn script(random: &mut LoadRandom, volume: &TargetVolume) -> Vec<u8> {
    let mut bytes = Vec::new();
    match random.below(100) {
        0..2 => return bytes,
        2..5 => return noise(random, 512),
        5..12 => {
            bytes.extend(3u32.to_be_bytes());
            odd_options(random, volume, &mut bytes);
            return cut(random, bytes);
        }
        _ => {}
    }
    bytes.extend(3u32.to_be_bytes());
    let extended = enter(random, volume, &mut bytes);
    for _ in 0..random.below(REQUESTS_MAX) {
        if !request(random, volume, extended, &mut bytes) {
            return bytes;
        }
    }
    if random.below(4) == 0 { cut(random, bytes) } else { bytes }
}

fn noise(random: &mut LoadRandom, bytes_max: u64) -> Vec<u8> {
    (0..random.below(bytes_max)).map(|_| random.next_u64() as u8).collect()
}

fn cut(random: &mut LoadRandom, mut bytes: Vec<u8>) -> Vec<u8> {
    let len = random.below(bytes.len() as u64 + 1);
    bytes.truncate(len as usize);
    bytes
}

fn option(number: u32, data: &[u8], out: &mut Vec<u8>) {
    option_claiming(number, data.len() as u32, data, out);
}

fn option_claiming(number: u32, len: u32, data: &[u8], out: &mut Vec<u8>) {
    out.extend(OPTION_MAGIC.to_be_bytes());
    out.extend(number.to_be_bytes());
    out.extend(len.to_be_bytes());
    out.extend(data);
}

fn go_data(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((infos.len() as u16).to_be_bytes());
    infos.iter().for_each(|info| data.extend(info.to_be_bytes()));
    data
}

fn meta_data(name: &str) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend(1u32.to_be_bytes());
    data.extend(15u32.to_be_bytes());
    data.extend(b"base:allocation");
    data
}

/// Invalid or misleading options.
fn odd_options(random: &mut LoadRandom, volume: &TargetVolume, out: &mut Vec<u8>) {
    for _ in 0..=random.below(6) {
        match random.below(8) {
            0 => option(OPTION_LIST, &[], out),
            1 => option(OPTION_INFO, &go_data(&volume.export, &[0, 1, 2, 3]), out),
            2 => option(OPTION_GO, &go_data("no such volume", &[]), out),
            3 => option(OPTION_STARTTLS, &[], out),
            4 => option(OPTION_ABORT, &[], out),
            5 => option(random.next_u64() as u32, &noise(random, 64), out),
            6 => option_claiming(OPTION_GO, random.next_u64() as u32, &noise(random, 64), out),
            _ => out.extend(noise(random, 64)),
        }
    }
}

/// Enters the export. Returns whether extended headers are in use.
fn enter(random: &mut LoadRandom, volume: &TargetVolume, out: &mut Vec<u8>) -> bool {
    let kind = random.below(8);
    let extended = kind == 0;
    if extended {
        option(OPTION_EXTENDED, &[], out);
    } else if kind < 5 {
        option(OPTION_STRUCTURED, &[], out);
    }
    if kind < 4 {
        option(OPTION_SET_META, &meta_data(&volume.export), out);
    }
    if kind == 7 {
        option(OPTION_EXPORT_NAME, volume.export.as_bytes(), out);
    } else {
        option(OPTION_GO, &go_data(&volume.export, &[3]), out);
    }
    extended
}

/// A request length, mostly short.
fn length(random: &mut LoadRandom) -> u64 {
    match random.below(1000) {
        0..450 => 512 * (1 + random.below(16)),
        450..750 => 4 * KIB * (1 + random.below(32)),
        750..920 => 32 * KIB + 512 * random.below(512),
        920..980 => 512 * (1 + random.below(4096)),
        // Huge requests, which queue for memory; few have the maximum length.
        980..995 => 2 * MIB + 4 * KIB * random.below(256),
        _ => 2 * MIB + 4 * KIB * random.below(30 * 256),
    }
}

/// One request. Returns whether another can follow it.
fn request(
    random: &mut LoadRandom,
    volume: &TargetVolume,
    extended: bool,
    out: &mut Vec<u8>,
) -> bool {
    let command = match random.below(100) {
        0..35 => READ,
        35..70 => WRITE,
        70..75 => FLUSH,
        75..80 => TRIM,
        80..85 => ZEROES,
        85..88 => CACHE,
        88..95 => BLOCK_STATUS,
        95 => DISCONNECT,
        _ => random.next_u64() as u16,
    };
    let mut len = if command == FLUSH { 0 } else { length(random) };
    let mut offset = 512 * random.below((volume.hostile_bytes - len) / 512);
    let mut flags = match (command, random.below(4)) {
        (WRITE | TRIM, 0) => 1,
        (ZEROES, flags) => [0, 1, 2, 0x10][flags as usize],
        (BLOCK_STATUS, 0) => 8,
        _ => 0,
    };
    let mut magic = if extended { EXTENDED_MAGIC } else { REQUEST_MAGIC };
    // One error. A request past the end of the volume is refused completely.
    match random.below(48) {
        0 => len = 0,
        1 => len += 1 + random.below(511),
        2 => len = [u64::from(u32::MAX), 1 << 31, 33 * MIB][random.below(3) as usize],
        3 => offset += 1 + random.below(511),
        4 => offset = volume.size_bytes - 512 * random.below(4),
        5 => offset = [u64::MAX, u64::MAX - 511, 1 << 63][random.below(3) as usize],
        6 => flags = random.next_u64() as u16,
        7 => magic = random.next_u64() as u32,
        _ => {}
    }
    if offset < volume.size_bytes && offset + len > volume.hostile_bytes && command != READ {
        // Sent only if it must be refused: too long, or past the end.
        len = len.max(volume.size_bytes - offset + 512);
    }
    if extended && command == WRITE {
        flags |= 0x20;
    }
    out.extend(magic.to_be_bytes());
    out.extend(flags.to_be_bytes());
    out.extend(command.to_be_bytes());
    out.extend(random.next_u64().to_be_bytes());
    out.extend(offset.to_be_bytes());
    match extended {
        true => out.extend(len.to_be_bytes()),
        false => out.extend((len as u32).to_be_bytes()),
    }
    command != WRITE || payload(random, len, out)
}

/// A complete or truncated payload. Returns whether it is complete.
fn payload(random: &mut LoadRandom, len: u64, out: &mut Vec<u8>) -> bool {
    let is_long = len > PAYLOAD_BYTES_CUT;
    let is_cut = if is_long { random.below(WHOLE_ONE_IN) != 0 } else { random.below(16) == 0 };
    let sent = if is_cut { random.below(len.min(PAYLOAD_BYTES_CUT)) } else { len.min(4 * MIB) };
    out.resize(out.len() + sent as usize, FILLER);
    sent == len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_script() {
        let volume =
            TargetVolume { export: "disk".into(), size_bytes: 64 * MIB, hostile_bytes: 56 * MIB };
        let scripts = |seed| {
            let mut random = LoadRandom::new(seed);
            (0..200).map(|_| script(&mut random, &volume)).collect::<Vec<_>>()
        };
        assert!(scripts(1) == scripts(1) && scripts(1) != scripts(2));
    }
}
