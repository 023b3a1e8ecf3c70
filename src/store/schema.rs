//! Migrations: embedded, applied in order at start under the database's own lock, never changed once released.

use std::borrow::Cow;

use sqlx::SqlSafeStr;
use sqlx::migrate::{Migrate, MigrateError, Migration, MigrationType, Migrator};

use super::StoreError;
use crate::domain::LeaseSecret;

/// Brings the schema up to date. Refuses a schema that is newer than this program.
pub(super) async fn migrate<C: Migrate>(
    connection: &mut C,
    schema: Option<&'static str>,
    migrations: &'static [(&'static str, &'static str)],
) -> Result<(), StoreError> {
    let migrations = migrations
        .iter()
        .enumerate()
        .map(|(i, (name, sql))| {
            Migration::new(i as i64 + 1, Cow::Borrowed(*name), MigrationType::Simple, sql.into_sql_str(), false)
        })
        .collect();
    let mut migrator = Migrator::with_migrations(migrations);
    if let Some(schema) = schema {
        migrator.create_schema(schema);
    }
    migrator.run_direct(None, connection, false).await.map_err(|error| match error {
        MigrateError::VersionMissing(version) => StoreError::Unusable(format!(
            "the store has schema version {version}, which is newer than this program; start the newer one"
        )),
        MigrateError::VersionMismatch(version) => {
            StoreError::Unusable(format!("the store's schema version {version} is not the one of this program"))
        }
        other => StoreError::Unusable(format!("the schema could not be brought up to date: {other}")),
    })
}

/// The secret that lease tokens are made with, as it was read.
pub(super) fn lease_secret(bytes: Vec<u8>) -> Result<LeaseSecret, StoreError> {
    let bytes = bytes.try_into().map_err(|_| StoreError::Unreadable("lease secret".to_owned()))?;
    Ok(LeaseSecret::new(bytes))
}
