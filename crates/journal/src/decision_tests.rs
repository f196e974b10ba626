use super::*;

const JOURNALS: [JournalState; 8] = [
    JournalState::None,
    JournalState::Empty,
    JournalState::Clean,
    JournalState::Records,
    JournalState::Damaged,
    JournalState::Abandoned,
    JournalState::OtherVersion,
    JournalState::Missing,
];
const VAULTS: [VaultState; 6] = [
    VaultState::None,
    VaultState::Empty,
    VaultState::Whole,
    VaultState::Incomplete,
    VaultState::Damaged,
    VaultState::Missing,
];
const DISKS: [DiskIdentity; 4] =
    [DiskIdentity::Same, DiskIdentity::Renamed, DiskIdentity::Changed, DiskIdentity::Unknown];
const BOTH: [bool; 2] = [false, true];

/// All combinations of inputs.
fn all() -> Vec<Inputs> {
    let mut all = Vec::new();
    for journal in JOURNALS {
        for pool in [PoolState::New, PoolState::Adopted] {
            for vault in VAULTS {
                for disk in DISKS {
                    for bits in 0..16 {
                        let [has_clean_mark, accept_loss, accept_disk, has_each_write] =
                            [0, 1, 2, 3].map(|bit| BOTH[bits >> bit & 1]);
                        all.push(Inputs {
                            journal,
                            has_each_write,
                            pool,
                            vault,
                            disk,
                            has_clean_mark,
                            accept_loss,
                            accept_disk,
                        });
                    }
                }
            }
        }
    }
    all
}

fn loads(inputs: Inputs) -> Vec<Source> {
    match decide(inputs) {
        Decision::Serve(sources) => sources,
        _ => Vec::new(),
    }
}

fn is_served(inputs: Inputs) -> bool {
    matches!(decide(inputs), Decision::Serve(_))
}

/// Whether the vault holds data, and no clean mark voids it.
fn vault_counts(inputs: Inputs) -> bool {
    let is_present =
        matches!(inputs.vault, VaultState::Whole | VaultState::Incomplete | VaultState::Damaged);
    !inputs.has_clean_mark && is_present
}

/// Whether the vault that may hold the newest data is missing.
fn vault_is_missing(inputs: Inputs) -> bool {
    !inputs.has_clean_mark && inputs.vault == VaultState::Missing
}

/// Whether the journal that may hold the newest data is missing. A clean stop removes this record
/// for the server's own volumes, so the clean mark does not matter.
fn journal_is_missing(inputs: Inputs) -> bool {
    inputs.journal == JournalState::Missing
}

fn pool_counts(inputs: Inputs) -> bool {
    inputs.pool == PoolState::Adopted && !inputs.has_clean_mark
}

fn journal_counts(inputs: Inputs) -> bool {
    matches!(inputs.journal, JournalState::Records | JournalState::Damaged)
}

#[test]
fn every_combination_is_decided_by_the_rules() {
    let all = all();
    assert_eq!(all.len(), 8 * 2 * 6 * 4 * 16);
    for inputs in all {
        let decision = decide(inputs);
        let is_known = matches!(inputs.disk, DiskIdentity::Same | DiskIdentity::Renamed);
        let has_data = vault_counts(inputs) || pool_counts(inputs) || journal_counts(inputs);
        // A journal of another version may hold anything.
        let is_readable = inputs.journal != JournalState::OtherVersion;
        assert_eq!(decision == Decision::Refuse(Refusal::OtherVersion), !is_readable, "{inputs:?}");
        // Data is quarantined if, and only if, the disk is not known to be the right one.
        let is_quarantined = is_readable && has_data && !is_known && !inputs.accept_disk;
        assert_eq!(decision == Decision::Quarantine, is_quarantined, "{inputs:?}");
        // Without data and without a reason to refuse, the volume is served.
        let is_abandoned = inputs.journal == JournalState::Abandoned;
        let is_missing = vault_is_missing(inputs) || journal_is_missing(inputs);
        let is_refused = is_missing && !inputs.accept_loss;
        if is_readable && !has_data && !is_abandoned && !is_refused {
            assert_eq!(decision, Decision::Serve(Vec::new()), "{inputs:?}");
        }
        // With an abandoned journal, only an adopted pool can be served.
        if is_abandoned && is_served(inputs) {
            assert!(pool_counts(inputs), "{inputs:?}");
        }
    }
}

#[test]
fn never_loads_void_data() {
    for inputs in all() {
        let loads = loads(inputs);
        let has_vault = loads.contains(&Source::Vault);
        assert!(!has_vault || vault_counts(inputs), "{inputs:?}");
        let has_pool = loads.contains(&Source::Pool);
        assert!(!has_pool || pool_counts(inputs), "{inputs:?}");
        let of_journal = [Source::Journal, Source::JournalAfterVault];
        let has_journal = loads.iter().any(|source| of_journal.contains(source));
        assert!(!has_journal || journal_counts(inputs), "{inputs:?}");
    }
}

#[test]
fn never_ignores_loss() {
    for inputs in all().into_iter().filter(|inputs| !inputs.accept_loss) {
        if pool_counts(inputs) {
            continue;
        }
        if inputs.journal == JournalState::Damaged {
            assert!(!is_served(inputs), "{inputs:?}");
        }
        let is_broken = matches!(inputs.vault, VaultState::Incomplete | VaultState::Damaged);
        let has_all = inputs.has_each_write
            && matches!(inputs.journal, JournalState::Records | JournalState::Empty);
        if vault_counts(inputs) && is_broken && !has_all {
            assert!(!is_served(inputs), "{inputs:?}");
        }
        // A journal cannot replace a missing vault, nor a vault a missing journal.
        if vault_is_missing(inputs) || journal_is_missing(inputs) {
            assert!(!is_served(inputs), "{inputs:?}");
        }
    }
}

#[test]
fn accepting_loss_or_a_disk_changes_nothing_if_not_needed() {
    for inputs in all() {
        if is_served(inputs) {
            let accepted = Inputs { accept_loss: true, ..inputs };
            assert_eq!(decide(accepted), decide(inputs), "{inputs:?}");
            let accepted = Inputs { accept_disk: true, ..inputs };
            assert_eq!(decide(accepted), decide(inputs), "{inputs:?}");
        }
    }
}

/// Which sources have a version of one block, besides the disk; later fields are newer.
struct Block {
    before_vault: bool,
    in_vault: bool,
    after_vault: bool,
    in_pool: bool,
}

#[test]
fn serves_the_newest_available_version_of_each_block() {
    for inputs in all().into_iter().filter(|inputs| is_served(*inputs)) {
        for bits in 0..16 {
            let [before_vault, in_vault, after_vault, in_pool] =
                [0, 1, 2, 3].map(|bit| BOTH[bits >> bit & 1]);
            let block = Block {
                before_vault: before_vault && journal_counts(inputs),
                in_vault: in_vault && vault_counts(inputs),
                after_vault: after_vault && journal_counts(inputs) && vault_counts(inputs),
                in_pool: in_pool && pool_counts(inputs),
            };
            check(inputs, &block);
        }
    }
}

fn check(inputs: Inputs, block: &Block) {
    // Data that was clean when a whole vault was written was on the disk. For an incomplete vault
    // this is known only if the journal has every write.
    let is_whole = inputs.vault == VaultState::Whole && vault_counts(inputs);
    let was_on_disk = is_whole && !block.in_vault && block.before_vault;
    // An adopted pool lacks only data that is on the disk.
    let newest_recorded = match block {
        Block { after_vault: true, .. } => 4,
        Block { in_vault: true, .. } => 3,
        Block { before_vault: true, .. } => 2,
        _ => 0,
    };
    // If the journal has every write, the journal or the disk has the vault's data.
    let in_journal_too = inputs.has_each_write && block.in_vault;
    let disk = match (pool_counts(inputs), was_on_disk) {
        _ if in_journal_too && inputs.journal == JournalState::Empty => 3,
        (true, _) if !block.in_pool => newest_recorded,
        (_, true) => 2,
        _ => 0,
    };
    let mut served = disk;
    for source in loads(inputs) {
        match source {
            Source::Journal => {
                // With `JournalAfterVault`, this is only the part made before the vault.
                let is_whole_journal = !loads(inputs).contains(&Source::JournalAfterVault);
                if block.before_vault {
                    served = 2;
                }
                if in_journal_too {
                    served = 3;
                }
                if is_whole_journal && block.after_vault {
                    served = 4;
                }
            }
            Source::Vault if block.in_vault => served = 3,
            Source::JournalAfterVault if block.after_vault => served = 4,
            Source::Pool if block.in_pool => served = 5,
            _ => {}
        }
    }
    let newest = if block.in_pool { 5 } else { newest_recorded.max(disk) };
    assert_eq!(served, newest, "{inputs:?}");
}
