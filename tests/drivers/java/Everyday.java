import static java.util.Arrays.asList;

import com.mongodb.MongoBulkWriteException;
import com.mongodb.MongoClient;
import com.mongodb.MongoClientURI;
import com.mongodb.MongoWriteException;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.model.InsertManyOptions;
import com.mongodb.client.model.UpdateOptions;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import org.bson.Document;

/** Writes to a protected collection; prints what the driver says. Every driver's script does the same. */
public class Everyday {
    static void refused(Runnable write) {
        try {
            write.run();
            System.out.println("not refused");
        } catch (MongoBulkWriteException error) {
            String positions = error.getWriteErrors().stream()
                .map(one -> String.valueOf(one.getIndex()))
                .collect(Collectors.joining(","));
            System.out.println("refused " + error.getWriteErrors().get(0).getCode() + " at " + positions + " inserted "
                + error.getWriteResult().getInsertedCount());
        } catch (MongoWriteException error) {
            boolean isNamed = error.getError().getMessage().contains("email_1 dup key");
            System.out.println("refused " + error.getCode() + " " + (isNamed ? "True" : "False"));
        }
    }

    static Document user(int id, String email) {
        return new Document("_id", id).append("email", email);
    }

    static Document email(String email) {
        return new Document("$set", new Document("email", email));
    }

    public static void main(String[] arguments) {
        java.util.logging.Logger.getLogger("org.mongodb").setLevel(java.util.logging.Level.SEVERE);
        MongoClient client = new MongoClient(new MongoClientURI(arguments[0]));
        MongoCollection<Document> users = client.getDatabase(arguments[1]).getCollection("users");
        Document third = new Document("_id", 3);
        users.insertOne(user(1, "a@x"));
        refused(() -> users.insertOne(user(2, "a@x")));
        List<Document> many = asList(user(3, "b@x"), user(4, "a@x"), user(5, "c@x"));
        refused(() -> users.insertMany(many, new InsertManyOptions().ordered(false)));
        refused(() -> users.updateOne(third, email("c@x")));
        System.out.println("updated " + users.updateOne(third, email("d@x")).getModifiedCount());
        System.out.println("before " + users.findOneAndUpdate(third, email("e@x")).getString("email"));
        users.replaceOne(new Document("_id", 6), new Document("email", "f@x"), new UpdateOptions().upsert(true));
        System.out.println("deleted " + users.deleteOne(new Document("email", "a@x")).getDeletedCount());
        users.insertOne(user(7, "a@x"));
        List<String> emails = new ArrayList<>();
        users.find().sort(new Document("_id", 1)).forEach((java.util.function.Consumer<Document>) user ->
            emails.add(user.getString("email")));
        System.out.println(String.join(" ", emails));
        client.close();
    }
}
