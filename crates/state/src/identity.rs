//! How journals, vaults and files of the state directory identify a volume.

/// The identity of a volume's disk in journal and vault, from its name and backing: four words of
/// FNV-1a (Fowler, Noll, Vo) with different offsets. The operator writes both texts, so the hash
/// need not resist deliberate collisions.
pub fn identity(name: &str, backing: &str) -> [u8; 32] {
    let mut identity = [0; 32];
    for (start, word) in identity.chunks_exact_mut(8).enumerate() {
        let text = name.bytes().chain([0]).chain(backing.bytes());
        let first = 0xcbf2_9ce4_8422_2325 ^ (start as u64) << 56;
        let sum = text
            .fold(first, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        word.copy_from_slice(&sum.to_le_bytes());
    }
    identity
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_depends_on_name_and_backing() {
        let one = identity("a", "/dev/sdb");
        assert_eq!(one, identity("a", "/dev/sdb"));
        assert_ne!(one, identity("b", "/dev/sdb"));
        assert_ne!(one, identity("a", "/dev/sdc"));
    }
}
