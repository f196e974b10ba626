//! What the operator wrote, checked: configuration file, volume specifications, sizes, addresses.
