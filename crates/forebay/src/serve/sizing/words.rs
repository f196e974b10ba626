//! The encoding of changed settings in the pool: a word for each, 0 if it was not changed.

use forebay_config::{MemoryReserve, MemorySetting, ServerChange};
use forebay_runtime::MemoryWords;

const AUTO: u64 = u64::MAX;

pub(super) fn encode(change: &ServerChange) -> MemoryWords {
    let size = |setting: Option<MemorySetting>| match setting {
        None => 0,
        Some(MemorySetting::Auto) => AUTO,
        Some(MemorySetting::Bytes(bytes)) => bytes,
    };
    let reserve = match change.memory_reserve {
        None => 0,
        Some(MemoryReserve::Auto) => AUTO,
        // Zero is a valid reserve.
        Some(MemoryReserve::Bytes(bytes)) => bytes.saturating_add(1).min(AUTO - 1),
    };
    [size(change.memory), size(change.memory_min), reserve, size(change.memory_max)]
}

pub(super) fn decode(words: MemoryWords) -> ServerChange {
    let size = |word| match word {
        0 => None,
        AUTO => Some(MemorySetting::Auto),
        bytes => Some(MemorySetting::Bytes(bytes)),
    };
    let [memory, memory_min, reserve, memory_max] = words;
    ServerChange {
        memory: size(memory),
        memory_min: size(memory_min),
        memory_max: size(memory_max),
        memory_reserve: match reserve {
            0 => None,
            AUTO => Some(MemoryReserve::Auto),
            word => Some(MemoryReserve::Bytes(word - 1)),
        },
        ..ServerChange::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_encoding() {
        for words in [
            &[][..],
            &["memory=auto", "memory-min=auto", "memory-max=auto", "memory-reserve=auto"],
            &["memory-max=4GiB"],
            &["memory=32MiB"],
            &["memory-min=1TiB", "memory-reserve=0"],
            &["memory-reserve=500MiB"],
        ] {
            let change = ServerChange::parse(words.iter().copied()).unwrap();
            assert_eq!(decode(encode(&change)), change);
        }
        assert_eq!(encode(&ServerChange::default()), [0; 4]);
    }
}
