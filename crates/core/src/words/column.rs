//! How is a fence kept in a table?
//!
//! As a `bigint`, so that the database compares it as a number. The impls exist only where their feature is on.

#[cfg(feature = "postgres-types")]
mod postgres {
    use postgres_types::{FromSql, IsNull, ToSql, Type, accepts, private::BytesMut, to_sql_checked};

    use crate::Fence;

    type Error = Box<dyn std::error::Error + Sync + Send>;

    impl ToSql for Fence {
        fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Error> {
            i64::from(*self).to_sql(kind, out)
        }

        accepts!(INT8);
        to_sql_checked!();
    }

    impl<'a> FromSql<'a> for Fence {
        fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Self, Error> {
            Ok(Self::try_from(i64::from_sql(kind, raw)?)?)
        }

        accepts!(INT8);
    }
}

#[cfg(feature = "sqlx")]
mod sqlx {
    use sqlx_core::database::Database;
    use sqlx_core::decode::Decode;
    use sqlx_core::encode::{Encode, IsNull};
    use sqlx_core::error::BoxDynError;
    use sqlx_core::types::Type;

    use crate::Fence;

    impl<DB: Database> Type<DB> for Fence
    where
        i64: Type<DB>,
    {
        fn type_info() -> DB::TypeInfo {
            <i64 as Type<DB>>::type_info()
        }

        fn compatible(kind: &DB::TypeInfo) -> bool {
            <i64 as Type<DB>>::compatible(kind)
        }
    }

    impl<'q, DB: Database> Encode<'q, DB> for Fence
    where
        i64: Encode<'q, DB>,
    {
        fn encode_by_ref(&self, buffer: &mut <DB as Database>::ArgumentBuffer) -> Result<IsNull, BoxDynError> {
            <i64 as Encode<'q, DB>>::encode(i64::from(*self), buffer)
        }
    }

    impl<'r, DB: Database> Decode<'r, DB> for Fence
    where
        i64: Decode<'r, DB>,
    {
        fn decode(value: <DB as Database>::ValueRef<'r>) -> Result<Self, BoxDynError> {
            Ok(Self::try_from(<i64 as Decode<'r, DB>>::decode(value)?)?)
        }
    }
}
